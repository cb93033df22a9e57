"""Chat templates that mean harm, or came to harm."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import DEEP, examples, many, orderly
from text.chat_templates import reference

from parlay import RequestError
from parlay.text.chat import ChatOptions, render
from parlay.text.template_process import TemplateProcess

MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x" * 3000}]


def chat(template: str, **options: Any) -> str:
    return render(template, MESSAGES, {"bos_token": "<s>"}, ChatOptions(**options))


@pytest.mark.parametrize(
    "template",
    [
        "{% include '/etc/passwd' %}",
        "{% include 'tokenizer.json' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ messages | attr('__class__') | attr('__mro__') | list }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'content': 'y'}) }}",
        "{{ environment }}",
    ],
)
def test_nothing_can_be_reached(template: str) -> None:
    before = [dict(m) for m in MESSAGES]
    try:
        assert chat(template) in ("", "[]")
    except RequestError as error:
        assert "the chat template refuses these messages: " in str(error)  # noqa: PT017 - or it gives nothing
    assert before == MESSAGES


def test_what_templates_do_still_works() -> None:
    for template, text in {
        "{{ 'ab' * 3 ~ 1 ~ none }}": "ababab1None",
        "{{ '%s-%3d' % ('a', 5) }}": "a-  5",
        "{{ '{:>4}'.format(7) }}": "   7",
        "{{ 2 ** 10 + 3 * 4 }}": "1036",
        "{{ messages | map(attribute='role') | join(',') }}": "user,assistant",
        "{{ 'a'.ljust(3) ~ 'b' | center(3) }}": "a   b ",
        "{% for x in range(3) if x != 1 %}{{ loop.index ~ ':' ~ x }} {% endfor %}": "1:0 2:2 ",
        "{{ [1, 2] + [3] }}": "[1, 2, 3]",
        "{{ bos_token + messages[0].content }}": "<s>hello",
    }.items():
        assert chat(template) == text


WORDS = """{{ }} {% %} {# #} for in if else endif endfor macro f() endmacro set endset break continue include import
    loop generation endgeneration messages m m.content m['role'] | tojson length range ( ) [ ] ~ * ** % = . - 9
    999999999 'a' namespace __class__ raise_exception('x') strftime_now('%Y') é"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "\ud800"])


@examples
def test_any_template_gives_text_or_an_error(examples: int) -> None:
    process = TemplateProcess(1.0)

    @many(examples)
    @given(st.lists(PIECES | st.text(max_size=4), max_size=25).map(" ".join))
    def run(template: str) -> None:
        with orderly():
            assert isinstance(process.run(template, {"messages": MESSAGES, "bos_token": "<s>"}), str)

    run()
    process.close()


@pytest.mark.parametrize("template", ["{{ " + DEEP + " }}", "{% if x %}" * 5000, "{{ " + "-" * 50_000 + "1 }}"])
def test_deep_templates(template: str) -> None:
    with orderly(), pytest.raises(RequestError):
        chat(template)


@pytest.mark.parametrize(
    "form",
    ["(false, 2)", "(true)", "(indent=1, sort_keys=true)", "(false, 4, (',', ':'))", "(false, none, none, true)", ""],
)
def test_json_as_transformers_has_it(form: str) -> None:
    """By position as in Mistral's and MiniMax's templates, or by name as in Granite's."""
    template = "{{ {'b': '<ü>', 'a': [1]} | tojson" + form + " }}"
    assert chat(template) == reference(template, MESSAGES)
