"""Chat templates as programs: compiled, and run with limits on access, time and memory.

They have what transformers documents: special tokens, `tools`, `raise_exception`, `strftime_now`, a `tojson` that
escapes no HTML, `break` and `continue`, and `generation` blocks.

jinja's sandbox keeps a template from files, from Python's own attributes and from changing its input. Nested loops
could still run for days, and products fill the memory; so iterations of loops, calls and filters are counted here,
and operators check how large their result would be.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from time import monotonic
from types import CodeType
from typing import Any

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from parlay.errors import RequestError, TemplateRefusalError, brief

# Far beyond any conversation.
_TURNS, _SECONDS = 1 << 20, 10.0
_LENGTH = 1 << 24  # of a text or list
_WIDTH = 1 << 16  # to which a text is padded
_BITS = 1 << 12  # of a power
_WIDE = re.compile(r"\d{5}|\*|:[^}]*\{")  # in a format: a width beyond that, or one given beside it


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Return the text that a template makes.

    Args:
        template: in Jinja's language.
        variables: its variables by name.

    Raises:
        RequestError: it does not end, or its result is too large.
        Exception: anything that its expressions raise.
    """
    environment = _Environment()
    made: list[str] = []
    left = _LENGTH
    for piece in Template.from_code(environment, _compile(template), environment.globals).generate(**variables):
        left -= len(piece)
        if left < 0:
            raise RequestError(_TOO_LARGE)
        made.append(piece)
    return "".join(made)


_TOO_LARGE = "the chat template makes something far larger than a conversation; give another one"
_ENDLESS = "the chat template does not come to an end; give another one"


class _Generation(Extension):
    """`generation` blocks, whose marks are used in training only."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the counts of one rendering."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        self.filters["tojson"] = _to_json
        self.turns = 0
        self.deadline = monotonic() + _SECONDS
        self.filters = {name: self._counted(function) for name, function in self.filters.items()}

    def turn(self) -> bool:
        """Count one iteration of a loop, a call or a filter."""
        self.turns += 1
        if self.turns > _TURNS or monotonic() > self.deadline:
            raise RequestError(_ENDLESS)
        return True

    def concatenate(self, *values: Any) -> str:
        """Return the result of `~`."""
        texts = [str(value) for value in values]
        _check(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Check how large a result would be before computing it."""
        sized = [x for x in (left, right) if isinstance(x, str | list | tuple | bytes)]
        if operator == "+" and len(sized) == 2:
            _check(len(left) + len(right))
        elif operator == "*" and len(sized) == 1:
            number = right if sized[0] is left else left
            _check(len(sized[0]) * number if isinstance(number, int) else 0)
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            _check(bits, _BITS)
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise RequestError(_TOO_LARGE)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call a function, a method or a macro."""
        if function != self.turn:
            self.turn()
        if isinstance(getattr(function, "__self__", None), str):
            _check_widths(arguments)
        return super().call(context, function, *arguments, **named)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the replacement of `str.format`."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE.search(value.__self__):
            raise RequestError(_TOO_LARGE)
        return wrapped

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            self.turn()
            _check_widths((*arguments[1:], *named.values()))
            if function.__name__ == "do_format" and _WIDE.search(str(arguments[0])):
                raise RequestError(_TOO_LARGE)
            return function(*arguments, **named)

        return counted


@lru_cache(maxsize=8)
def _compile(template: str) -> CodeType:
    environment = _Environment()
    tree = _Account().visit(environment.parse(template))
    tree.set_environment(environment)
    return environment.compile(tree)


class _Account(NodeTransformer):
    """Makes iterations of loops counted, and `~` checked like the other operators."""

    def visit_For(self, loop: nodes.For) -> nodes.For:  # noqa: N802 - goes by the node's name
        self.generic_visit(loop)
        turn = _call("turn", [], loop.lineno)
        if loop.test is None:
            loop.body.insert(0, nodes.ExprStmt(turn, lineno=loop.lineno))
        else:  # items that it filters out cost time too
            loop.test = nodes.And(turn, loop.test, lineno=loop.lineno)
        return loop

    def visit_Concat(self, concat: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(concat)
        return _call("concatenate", concat.nodes, concat.lineno)


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None, lineno=line)


def _check(length: int, most: int = _LENGTH) -> None:
    if length > most:
        raise RequestError(_TOO_LARGE)


def _check_widths(arguments: tuple[Any, ...]) -> None:
    for argument in arguments:
        if isinstance(argument, int):
            _check(argument, _WIDTH)


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
