"""Chat templates as programs, in jinja's sandbox: it keeps them from files and from Python's own attributes.

They have what transformers documents: special tokens, `tools`, `raise_exception`, `strftime_now`, a `tojson` that
escapes no HTML, `break` and `continue`, and `generation` blocks. What they use of time and memory is limited by the
process that they run in, see `template_process`.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from parlay.errors import RequestError, TemplateRefusalError, brief

_LONGEST = 1 << 24  # characters of a prompt, far beyond any conversation


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Return the text that a template makes.

    Args:
        template: the chat template, in Jinja's language.
        variables: its variables by name.

    Raises:
        RequestError: the text is too long.
        Exception: anything that its expressions raise.
    """
    text = _compile(template).render(variables)
    if len(text) > _LONGEST:
        raise RequestError("the chat template produces far more text than a conversation has; give another one")
    return text


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    made.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    made.filters["tojson"] = _to_json
    return made


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    return _environment().from_string(template)


class _Generation(Extension):
    """`generation` blocks, whose marks are used in training only."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson`, with the arguments that transformers gives it, by position or by name."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    """The function that templates call to refuse messages."""
    raise TemplateRefusalError(f"the chat template refuses these messages: {brief(str(message))}")
