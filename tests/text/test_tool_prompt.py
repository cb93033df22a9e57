"""Functions, calls and results told in words, where a template has no place for them."""

from typing import Any

from parlay.text.chat import ChatOptions, render, shows_tools

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
REFUSE = "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
NO_SYSTEM = "{% for m in messages %}" + REFUSE + PLAIN.removeprefix("{% for m in messages %}")
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def conversation(**more: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "go", **more},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
    ]


def test_all_of_it_stands_in_the_prompt() -> None:
    text = render(PLAIN, conversation(), {}, ChatOptions(tools=[TOOL]))
    assert text.startswith("<system>You can call functions.")
    assert '{"name": "f", "parameters": {"type": "object"}}' in text
    assert '<assistant><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n' in text
    assert text.count("<user>") == 2  # results of one turn are one message
    assert "<user><tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\n" in text


def test_a_call_as_templates_documents_write_it_is_told_too() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]}
    text = render(PLAIN, [*conversation()[:1], call], {}, ChatOptions(tools=[TOOL]))
    assert '<assistant><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n' in text


def test_nothing_is_escaped() -> None:
    """Escapes would take a multiple of the tokens."""
    function = {"name": "f", "description": "für 天氣 и погода", "parameters": {"type": "object"}}
    text = render(PLAIN, conversation()[:1], {}, ChatOptions(tools=[{"type": "function", "function": function}]))
    assert '"description": "für 天氣 и погода"' in text


def test_words_of_a_system_come_first() -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "go"}]
    text = render(PLAIN, messages, {}, ChatOptions(tools=[TOOL]))
    assert text.startswith("<system>Be kind.\n\nYou can call functions.")
    assert text.count("<system>") == 1


def test_a_template_that_refuses_systems() -> None:
    text = render(NO_SYSTEM, conversation(), {}, ChatOptions(tools=[TOOL]))
    assert text.startswith("<user>You can call functions.")
    assert text.index("You can call") < text.index("go")


def test_a_template_that_refuses_tools() -> None:
    """As one that puts what `map` yields into JSON."""
    template = "{% if tools %}{{ tools | map(attribute='function') | tojson }}{% endif %}" + PLAIN
    assert not shows_tools(template, {})
    with_tools = render(template, conversation(), {}, ChatOptions(tools=[TOOL]))
    assert with_tools == render(PLAIN, conversation(), {}, ChatOptions(tools=[TOOL]))
    assert shows_tools("{{ raise_exception('never') }}", {}), "it may refuse something else"


def test_a_template_with_a_place_has_all_as_it_is() -> None:
    template = (
        "{{ tools | tojson if tools else '' }}" + PLAIN + "{{ messages[1].tool_calls[0].function.arguments.a }}"
    )
    assert shows_tools(template, {})
    assert not shows_tools(PLAIN, ())
    text = render(template, conversation(), {}, ChatOptions(tools=[TOOL]))
    assert text.endswith("1")  # arguments are values
    assert "<assistant>\n" in text  # no content is an empty text
    assert "You can call" not in text
