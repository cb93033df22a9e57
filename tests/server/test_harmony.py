"""gpt-oss's messages on channels: any cut gives the same parts, and nothing is lost of what is damaged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answer_forms import permitted_as
from checkpoints import write_llama
from hypothesis import given
from hypothesis import strategies as st
from serving import Live, engine_of
from tokenizers import AddedToken, Tokenizer

from parlay import AsyncLLM
from parlay.checkpoints.find import find_model
from parlay.server.openai.fields import ChatFields
from parlay.server.openai.harmony import HARMONY
from parlay.server.openai.messages import MessageReader
from parlay.server.openai.reasoning import MARKS, marks_of, thoughts_reader
from parlay.server.openai.response_format import CHAT, AnswerForm, form_of
from parlay.server.openai.tool_formats import FORMATS, format_of
from parlay.server.openai.tool_readers import FreeReader
from parlay.server.openai.tools import Tools, read_tools

TOKENIZER = Tokenizer.from_file(str(find_model("tiny-code") / "tokenizer.json"))
SPECIAL = ("start", "end", "message", "channel", "constrain", "call", "return")
TOKENIZER.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in SPECIAL])
TOOLS = Tools({"weather": {"type": "object"}, "f": {"type": "object"}}, "auto", given=("weather", "f"))
CALLS = "<|channel|>analysis<|message|>Ask.<|end|><|start|>assistant"


def read(pieces: list[str], tokens: list[list[int]] | None = None) -> tuple[str, str, list[tuple[str, str]], int]:
    """Return reasoning, text, calls, and tokens of reasoning."""
    reader, calls = MessageReader(HARMONY, TOKENIZER), FreeReader(TOOLS, FORMATS["openai"])
    reasoning, text, made = "", "", list[list[str]]()
    for i, piece in enumerate(pieces):
        finished = i == len(pieces) - 1
        new, answer = reader.feed(piece, finished, tokens[i] if tokens else ())
        reasoning += new
        for part in calls.feed(answer, finished):
            if isinstance(part, str):
                text += part
            elif "id" in part:
                made.append([part["function"]["name"], part["function"]["arguments"]])
            else:
                made[-1][1] += part["function"]["arguments"]
    return reasoning, text, [(name, arguments) for name, arguments in made], reader.tokens


CASES: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "an answer": (
        "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "Well.",
        "Yes.",
        [],
    ),
    "a call": (
        f'{CALLS}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{{"city": "Oslo"}}<|call|>',
        "Ask.",
        "",
        [("weather", '{"city": "Oslo"}')],
    ),
    "the recipient first": (
        f'{CALLS} to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{{"city": "Oslo"}}',
        "Ask.",
        "",
        [("weather", '{"city": "Oslo"}')],
    ),
    "without json": (f"{CALLS} to=functions.f<|channel|>commentary<|message|>{{}}", "Ask.", "", [("f", "{}")]),
    # As models write at times (vllm-project/vllm#42454).
    "a bare name on another channel": (
        '<|channel|>analysis to=weather code<|message|>{"city": "Oslo"}<|call|>',
        "",
        "",
        [("weather", '{"city": "Oslo"}')],
    ),
    "another tool's name": ("<|channel|>analysis to=python code<|message|>1+1<|call|>", "1+1", "", []),
    "a preamble": (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f"
        "<|message|>{}<|call|>",
        "",
        "I look.",
        [("f", "{}")],
    ),
    "reasoning twice": (
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>",
        "A\nB",
        "",
        [],
    ),
    "without an end": ("<|channel|>analysis<|message|>A<|start|>assistant<|channel|>final<|message|>B", "A", "B", []),
    "cut in reasoning": ("<|channel|>analysis<|message|>Well <|en", "Well <|en", "", []),
    "cut in a header": ("<|channel|>analysis<|message|>Well.<|end|><|start|>assis", "Well.", "", []),
    "cut in a call": (
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Os',
        "",
        "",
        [("weather", '{"city": "Os')],
    ),
    "an empty message": (
        "<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        "",
        "Hi",
        [],
    ),
    "two channels": ("<|channel|>analysis<|channel|>final<|message|>Hi", "", "Hi", []),
    "no channel": ("<|message|>Yes.", "", "Yes.", []),
    "text alone": ("assistants answer; <b>", "", "assistants answer; <b>", []),
    "no such function": (
        "<|channel|>commentary to=functions.other<|message|>{}<|call|>",
        "",
        "<|start|>assistant to=functions.other<|message|>{}",
        [],
    ),
    "nothing": ("", "", "", []),
}


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_any_cut_gives_the_same_parts(name: str, data: st.DataObject) -> None:
    answer, *expected = CASES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    for places in (cuts, range(1, len(answer))):
        pieces = [answer[a:b] for a, b in zip([0, *places], [*places, len(answer)], strict=True)]
        assert [*read(pieces)[:3]] == expected


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("an answer", CASES["an answer"][0].partition("<|start|>")[0]),
        ("text alone", ""),
        ("an empty message", ""),
        ("two channels", ""),
        ("a preamble", ""),
        ("reasoning twice", CASES["reasoning twice"][0]),
        ("cut in reasoning", CASES["cut in reasoning"][0]),
    ],
)
@given(data=st.data())
def test_tokens_of_reasoning_are_those_of_its_messages(name: str, counted: str, data: st.DataObject) -> None:
    tokens = TOKENIZER.encode(CASES[name][0]).ids
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    parts = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    pieces = [TOKENIZER.decode(part, skip_special_tokens=False) for part in parts]
    assert read(pieces, parts)[3] == len(TOKENIZER.encode(counted).ids)


@given(st.text(alphabet="<|>abeghilmnostc \n{}:=."), st.data())
def test_nothing_of_an_answer_without_marks_is_lost(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    reasoning, said, calls, _ = read([text[:cut], text[cut:]])
    assert (reasoning, calls) == ("", [])
    assert said == text or (not said and "".join(text.split()) in "<|start|>assistant<|channel|>to=<|constrain|>")


def test_it_is_found_by_the_template() -> None:
    template = "{{ '<|start|>assistant<|channel|>commentary ' }}"
    assert format_of("auto", template) is FORMATS["openai"]
    marks = marks_of("auto", template)
    assert marks is MARKS["openai_gptoss"]
    assert marks is not None
    assert isinstance(thoughts_reader(marks, "", TOKENIZER), MessageReader)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("weather", "f")]
NAMED = {"type": "function", "function": {"name": "weather"}}
ANSWER = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "array", "items": {"type": "integer"}}},
}
THOUGHT = "<|channel|>analysis<|message|>Well, {].<|end|><|start|>assistant"
CALL = ' <|constrain|>json<|message|>{"city": "Oslo"}'


@pytest.mark.parametrize("thought", ["", THOUGHT, THOUGHT * 2])
def test_an_answer_of_a_certain_form_may_be_thought_about(thought: str) -> None:
    def form(**body: Any) -> AnswerForm:
        fields = ChatFields(**body)
        return form_of(fields, read_tools(fields), FORMATS["openai"], TOKENIZER, None, CHAT)

    first, last = (f"<|channel|>commentary to=functions.{n}{CALL}" for n in ("weather", "f"))
    turned = f" to=functions.f<|channel|>commentary{CALL}"
    answer = "<|channel|>final<|message|>[1, 2]"
    cases = [
        (form(response_format=ANSWER), {answer, answer.replace("final", "final <|constrain|>json")}),
        (form(response_format=ANSWER, tools=FUNCTIONS), {answer, first, last, turned}),
        (form(tools=FUNCTIONS, tool_choice="required"), {first, last, turned}),
        (form(tools=FUNCTIONS, tool_choice=NAMED), {first}),
    ]
    for made, texts in cases:
        for text in (answer, first, last, turned, "[1, 2]", "<|channel|>final<|message|>Hi"):
            assert permitted_as("openai_gptoss", TOKENIZER, made, thought + text) == (text in texts)
        assert permitted_as("openai_gptoss", TOKENIZER, made, thought + next(iter(texts))[:-1]) is False


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    path: Path = write_llama(tmp_path_factory.mktemp("harmony"), vocab_size=257 + len(SPECIAL))
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    for number, name in enumerate(SPECIAL, 257):
        vocab = tokenizer["model"]["vocab"]
        vocab[f"<|{name}|>"] = vocab.pop(f"<{number}>")
        token = {"id": number, "content": f"<|{name}|>", "special": True, "normalized": False}
        tokenizer["added_tokens"].append({**token, "single_word": False, "lstrip": False, "rstrip": False})
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = (
        "{# <|channel|>commentary #}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
    )
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [262, 263]}))  # call, return
    with engine_of(path, speculative_config=None) as made:
        yield made


@pytest.fixture(scope="module")
def live(engine: AsyncLLM) -> Iterator[Live]:
    with Live(engine) as server:
        yield server


SCRIPTED = {
    "final": (THOUGHT + "<|channel|>final<|message|>Yes.", "Yes.", None),
    "commentary": (f"{THOUGHT}<|channel|>commentary to=functions.weather{CALL}", None, '{"city": "Oslo"}'),
}


def scripted(text: str) -> dict[str, Any]:
    """Return the form of just this answer."""
    codes = {f"<|{name}|>": f"<[{number}]>" for number, name in enumerate(SPECIAL, 257)}
    parts = text.replace("<|", "\0<|").replace("|>", "|>\0").split("\0")
    rules = " ".join(codes.get(part) or json.dumps(part) for part in parts if part)
    return {"grammar": f"start: {rules}", "prefix_grammar": 'prefix: ""'}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SCRIPTED)
def test_channels_over_http(live: Live, name: str, stream: bool) -> None:
    text, content, arguments = SCRIPTED[name]
    body = {
        "messages": [{"role": "user", "content": "Hi"}], "tools": FUNCTIONS, "structured_outputs": scripted(text),
        "max_tokens": 200,
    }  # fmt: skip
    if stream:
        parts = [event["choices"][0] for event in live.events("/v1/chat/completions", **body)]
        deltas = [part["delta"] for part in parts]
        finish = parts[-1]["finish_reason"]
        thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
        said = "".join(delta.get("content") or "" for delta in deltas) or None
        calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
        called = "".join(call["arguments"] for call in calls) or None
    else:
        answer = live.post("/v1/chat/completions", body).json()
        message, finish = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
        thought, said = message["reasoning_content"], message["content"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        called = "".join(call["arguments"] for call in calls) or None
        counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert counted == len(b"analysisWell, {].") + 3
    assert (thought, said, called) == ("Well, {].", content, arguments)
    assert [call["name"] for call in calls if call.get("name")] == (["weather"] if arguments else [])
    assert finish == ("tool_calls" if arguments else "stop")


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_call_that_must_be_made(engine: AsyncLLM, live: Live, choice: Any, path: str) -> None:
    space = engine.codec.tokenizer.token_to_id("\u0120")
    # The model is random: without this it might think for ever.
    body: dict[str, Any] = {"tool_choice": choice, "logit_bias": {str(space): 50}}
    limited = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    if path == "/v1/responses":
        body |= {"input": "Hi", "tools": [{"type": "function", "name": "weather", "parameters": limited}]}
        body["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "name": "weather"}
        items = live.post(path, body).json()["output"]
        (call,) = [item for item in items if item["type"] == "function_call"]
    else:
        tool = {"type": "function", "function": {"name": "weather", "parameters": limited}}
        body |= {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
        answer = live.post(path, body).json()["choices"][0]
        call = answer["message"]["tool_calls"][0]["function"]
        assert answer["message"]["content"] is None
    assert call["name"] == "weather"
    assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")
