"""Chat templates that mean harm, or came to harm."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import DEEP, examples, many, orderly
from text.chat_templates import reference

from parlay import RequestError
from parlay.text import template as templates
from parlay.text.chat import HERE, ChatOptions, render

MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x" * 3000}]


def chat(template: str, **options: Any) -> str:
    return render(template, MESSAGES, {"bos_token": "<s>"}, ChatOptions(**options))


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_TURNS", 1000)


TEN_TIMES = "{% for _ in range(10) %}"
ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that skip": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops over text": "{% for a in messages[1].content %}{% for b in messages[1].content %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loops": "{% for a in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 60 }}{% endfor %}",
    "filters": "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "constants": TEN_TIMES * 7 + "x" + "{% endfor %}" * 7,
}


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("template", ENDLESS.values(), ids=list(ENDLESS))
def test_what_does_not_end_is_ended(template: str) -> None:
    with orderly(), pytest.raises(RequestError, match="does not come to an end") as error:
        chat(template)
    with orderly():
        raise error.value


def test_turns_are_those_of_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_TURNS", 30)
    variables = {"messages": [{"role": "user"}, {"role": "system"}]}
    for _ in range(5):
        assert (
            HERE.run("{% for m in messages if m.role == 'user' %}{{ m.role }}{% endfor %}" * 10, variables)
            == "user" * 10
        )
    with pytest.raises(RequestError, match="end"):
        HERE.run("{% for m in messages if m.role == 'user' %}{{ m.role }}{% endfor %}" * 16, variables)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        "{{ [1] * 10**10 }}",
        "{{ 10**(10**10) }}",
        "{{ 2**4096 }}",
        "{% set ns = namespace(x='ab') %}" + "{% set ns.x = ns.x ~ ns.x %}" * 40 + "{{ ns.x }}",
        "{% set ns = namespace(x='ab') %}" + "{% set ns.x = ns.x + ns.x %}" * 40 + "{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}" + "{% set ns.x = ns.x + ns.x %}" * 40 + "{{ ns.x }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | indent(width=999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'.zfill(999999999) }}",
        "{% set x = 'a' * 2**20 %}{% for i in range(1000) %}{{ x }}{% endfor %}",
    ],
)
def test_what_would_fill_the_memory_is_refused(template: str) -> None:
    with orderly(), pytest.raises(RequestError, match="far larger than a conversation") as error:
        chat(template)
    with orderly():
        raise error.value


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
        "{{ environment.turns }}",
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
    @many(examples)
    @given(st.lists(PIECES | st.text(max_size=4), max_size=25).map(" ".join), st.booleans())
    def run(template: str, prompt: bool) -> None:
        with orderly():
            assert isinstance(chat(template, add_generation_prompt=prompt), str)

    run()


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
