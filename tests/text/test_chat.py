"""From a conversation to a prompt, against what transformers makes of the same template."""

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_byte_tokenizer
from conftest import MakeLLM
from text.chat_templates import GEMMA3, GUARD
from transformers import PreTrainedTokenizerFast

from parlay import ConfigError, RequestError, SamplingParams
from parlay.checkpoints.find import ASSETS
from parlay.text.chat import ChatOptions, render
from parlay.text.tokenizer import TextCodec

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ODD = (
    "{{ bos_token }}{%- for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}\n"
    "  {% if m.role == 'end' %}{% break %}{% endif %}\n"
    "[{{ loop.index }}] {{ m | tojson }} {{ m.content | trim }}{% endfor %}"
    "{% generation %}{{ tools | tojson(indent=2) if tools else 'no tools' }}{% endgeneration %}"
    "{% if tools is none and documents is none %} nothing{% endif %}{{ ' ' ~ (thinking or 'quick') }}"
)
HELLO = [{"role": "system", "content": "Be <brief> & ünkind."}, {"role": "user", "content": " hi\n"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "adds <1>", "parameters": {}}}]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    path = tmp_path_factory.mktemp("peer")
    write_byte_tokenizer(path)
    return PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), bos_token="<s>")


@pytest.mark.parametrize(
    "messages",
    [
        HELLO,
        [*HELLO, {"role": "skip", "content": "x"}, {"role": "assistant", "content": "yo"}],
        [*HELLO, {"role": "end", "content": "x"}, {"role": "user", "content": "never"}],
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("template", [CHATML, ODD])
@pytest.mark.parametrize("more", [{}, {"thinking": "slow"}])
def test_as_transformers(
    peer: PreTrainedTokenizerFast, messages: Any, tools: Any, template: str, more: dict[str, Any]
) -> None:
    expected = peer.apply_chat_template(
        messages, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True, **more
    )
    if tools and template == CHATML:
        pytest.skip("a template without a place for tools; see test_tool_prompt.py")
    options = ChatOptions(tools=tools, chat_template_kwargs=more)
    assert render(template, messages, {"bos_token": "<s>"}, options) == expected


def test_without_what_begins_an_answer() -> None:
    options = ChatOptions(add_generation_prompt=False)
    assert render(CHATML, HELLO[1:], {}, options) == "<|im_start|>user\n hi\n<|im_end|>\n"


TRIMS = CHATML.replace("message['content']", "(message['content'] | trim)")
SPLITS = CHATML.replace("message['content']", "message['content'].split('</think>')[-1].lstrip('\n')")


@pytest.mark.parametrize(
    "template", [CHATML, TRIMS, SPLITS, GEMMA3, GUARD], ids=["chatml", "trim", "think", "gemma", "guard"]
)
@pytest.mark.parametrize(
    "final",
    [
        "Well, hi",
        "end",  # part of <|im_end|>
        "m",
        "s",
        "1. a\n2. b\n",
        "List:\n",
        "x = ",
        " Well,  ",
        " ",
        "",
        [{"type": "text", "text": "a "}, {"type": "text", "text": "b "}],
    ],
    ids=repr,
)
def test_going_on_with_the_last_message(peer: PreTrainedTokenizerFast, template: str, final: Any) -> None:
    messages = [*HELLO[:1], {"role": "user", "content": "hi"}, {"role": "assistant", "content": final}]
    text = render(template, messages, {}, ChatOptions(add_generation_prompt=False, continue_final_message=True))
    shown = [*messages[:2], {"role": "assistant", "content": "a \nb " if isinstance(final, list) else final}]
    if template == GUARD:
        shown = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in shown]
    if template in (GUARD, GEMMA3) and isinstance(final, list):
        shown = [*shown[:2], messages[2]]
    assert text == peer.apply_chat_template(
        shown, chat_template=template, tokenize=False, continue_final_message=True
    )


@pytest.mark.parametrize(
    ("template", "content", "match"),
    [
        (CHATML, None, "last message with content"),
        (SPLITS, "<think>Hm.</think>So", "cannot be continued"),
        ("nothing", "hi", "cannot be continued"),
        ("{{ messages[-1].content | upper }}", "hi", "cannot be continued"),
        ("{{ messages[-1].content[:5] }}", "Well, hi", "cannot be continued"),
    ],
)
def test_what_cannot_be_gone_on_with(template: str, content: Any, match: str) -> None:
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(RequestError, match=match):
        render(template, [*HELLO, {"role": "assistant", "content": content}], {}, options)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        ["hi"],
        [{"role": 3, "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        [{"role": "user", "content": [{"type": "text", "text": None}]}],
    ],
    ids=str,
)
def test_messages_of_another_form(messages: Any) -> None:
    with pytest.raises(RequestError):
        render(CHATML, messages, {}, ChatOptions())


@pytest.mark.parametrize(
    ("kind", "words"),
    [("image_url", "an image"), ("input_audio", "audio"), ("video_url", "a video"), ("file", "a file")],
)
def test_what_is_no_text_is_named(kind: str, words: str) -> None:
    content = [{"type": "text", "text": "what is it?"}, {"type": kind, kind: {"url": "a secret"}}]
    with pytest.raises(
        RequestError, match=f"a content has {words}, but only text is read here; leave it out"
    ) as error:
        render(CHATML, [{"role": "user", "content": content}], {}, ChatOptions())
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{{ raise_exception('no system') }}", "refuses these messages: no system"),
        ("{% if %}", "refuses these messages"),
        ("{{ messages[9].content.x }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_templates_that_refuse(template: str, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        render(template, HELLO, {}, ChatOptions())


def test_a_variable_given_twice() -> None:
    with pytest.raises(ConfigError, match="chat_template_kwargs has 'messages', which is a separate argument"):
        render(CHATML, HELLO, {}, ChatOptions(chat_template_kwargs={"messages": []}))
    template = "{{ bos_token }}{{ messages[0].content }}"
    assert (
        render(template, HELLO, {"bos_token": "<s>"}, ChatOptions(chat_template_kwargs={"bos_token": "-"}))[0] == "-"
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"chat_templat": "x"}, "unknown chat option 'chat_templat' .did you mean 'chat_template'"),
        ({"tools": "x"}, "tools"),
        ({"continue_final_message": True}, "set add_generation_prompt to False"),
    ],
    ids=str,
)
def test_options_that_are_none(make_llm: MakeLLM, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_llm().chat(HELLO, **options)


def test_options_reach_the_template(make_llm: MakeLLM) -> None:
    llm = make_llm()
    [output] = llm.chat(
        HELLO, chat_template="{{ name }}: {{ messages[1].content }}", chat_template_kwargs={"name": "x"}
    )
    assert output.prompt == "x:  hi\n"


def test_a_model_without_a_template(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    codec = TextCodec(tmp_path)
    with pytest.raises(RequestError, match="no chat template; give one as chat_template"):
        codec.chat(HELLO)
    assert codec.chat(HELLO, ChatOptions(chat_template="{{ messages | length }}")) == "2"
    codec.use_template("{{ messages[1].content | trim }}!")
    assert codec.has_chat_template
    assert codec.prefers_chat
    assert codec.chat(HELLO) == "hi!"


def test_a_template_in_place_of_several(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    named = [{"name": name, "template": name} for name in ("default", "tool_use", "rag")]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    codec = TextCodec(tmp_path)
    codec.use_template("{{ messages[1].content | trim }}!")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert codec.template_names == {"default"}
    assert "hi!" in codec.chat(HELLO, ChatOptions(tools=tools))
    assert codec.lane(codec.template) == "own"


def test_the_embedded_model_has_one() -> None:
    text = TextCodec(ASSETS / "tiny-code").chat([{"role": "user", "content": "hi"}])
    assert text == "<|endoftext|><|user|>\nhi\n<|assistant|>\n"


@pytest.mark.parametrize("messages", ["hello", HELLO[0], None, 5, [5], [HELLO, 5], ["hello"]], ids=str)
def test_what_is_no_conversation(make_llm: MakeLLM, messages: Any) -> None:
    def ask() -> None:
        outputs = make_llm().chat(messages, SamplingParams(max_tokens=1), chat_template=CHATML)
        raise next(output.error for output in outputs if output.error is not None)

    with pytest.raises(RequestError, match="a conversation is a list of messages, not"):
        ask()


@pytest.mark.parametrize("calls", ["x", 3, {"name": "f"}, ["f"], [None]], ids=str)
def test_calls_that_are_none(calls: Any) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    with pytest.raises(RequestError, match="tool_calls is a list of"):
        render("{{ messages }}", [message], {}, ChatOptions())
