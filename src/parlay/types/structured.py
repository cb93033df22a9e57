"""The form that a user may ask an answer to have."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from parlay.errors import RequestError, shown
from parlay.types.bounds import from_mapping
from parlay.types.json_schema import closed

# Characters of a grammar, and lines of one in EBNF. Compilers recurse along rules, and some work grows quadratically.
LONGEST, MOST_LINES = 1 << 17, 2000

_FORMATS = ("json", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form that an answer has; one of the first five is given. Names are vLLM's.

    Attributes:
        json: a JSON schema, as text or as a mapping; properties come in the schema's order.
        json_object: any JSON object.
        regex: a regular expression that the whole answer matches; no look-around, no back-references.
        choice: the answer is one of these strings.
        grammar: a grammar in EBNF, with rules such as `root ::= "yes" | "no"`, or in Lark's notation.
        disable_any_whitespace: JSON is written without white space between its parts.
        whitespace_pattern: a regular expression of the white space between two parts of JSON, which may be left out.
        disable_additional_properties: objects of a JSON schema have no properties but those that it lists, unless it
            says `additionalProperties`. False leaves them open.
        prefix_grammar: Lark rules, of which the rule `prefix` matches what stands before the form, such as reasoning.

    Raises:
        RequestError: not just one form is given, or it is malformed or too long.
    """

    json: str | Mapping[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Annotated[Sequence[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = True
    whitespace_pattern: str | None = None
    prefix_grammar: str | None = None

    def __post_init__(self) -> None:
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, not {shown(getattr(self, name))}")
        given = [name for name in _FORMATS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise RequestError(f"structured_outputs takes exactly one of {', '.join(_FORMATS)}; {found} was given")
        (form,) = given
        if self.disable_any_whitespace and not form.startswith("json"):
            raise RequestError(f"disable_any_whitespace applies to JSON only; leave it out with {form}")
        if self.whitespace_pattern is not None:
            _check_text("whitespace_pattern", self.whitespace_pattern)
            if self.disable_any_whitespace or not form.startswith("json"):
                other = "disable_any_whitespace" if self.disable_any_whitespace else form
                raise RequestError(f"whitespace_pattern applies to JSON only; leave it out with {other}")
        if self.json is not None:
            text = _schema_text(self.json)
            if self.disable_additional_properties:
                text = closed(text)
                _check_text("json with its objects closed", text)
            object.__setattr__(self, "json", text)
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("regex", "grammar", "prefix_grammar"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        for name in ("grammar", "prefix_grammar"):
            if (getattr(self, name) or "").count("\n") > MOST_LINES:
                raise RequestError(f"{name} has more than {MOST_LINES} lines; write a smaller one")

    @property
    def form(self) -> str:
        """Which form is asked for."""
        return next(name for name in _FORMATS if getattr(self, name) not in (None, False))

    @property
    def space(self) -> dict[str, Any]:
        """The white space of JSON, as llguidance's options."""
        if self.whitespace_pattern is not None:
            return {"whitespace_pattern": self.whitespace_pattern}
        return {"whitespace_flexible": not self.disable_any_whitespace}

    @classmethod
    def parse(cls, value: "StructuredOutputsParams | Mapping[str, Any]") -> "StructuredOutputsParams":
        """Return `value` as parameters.

        Raises:
            RequestError: an unknown key, or what the class refuses.
        """
        return from_mapping(cls, value, "structured_outputs", "{'regex': '[0-9]+'}")


def _schema_text(schema: object) -> str:
    """Return a schema as text, which can be hashed and no longer changes."""
    if isinstance(schema, str):
        _check_text("json", schema)
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False, default=_plain)
    except RecursionError:
        raise RequestError("json is nested too deeply; write a flatter schema") from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"json is not a JSON schema: {error}") from None
    if not isinstance(schema, Mapping):
        raise RequestError(f"json must be a JSON schema, which is an object, not {type(schema).__name__}")
    _check_text("json", text)
    return text


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _choices(choice: object) -> tuple[str, ...]:
    if isinstance(choice, str) or not isinstance(choice, Sequence) or not choice:
        raise RequestError(f"choice must be a list of at least one string, not {shown(choice)}")
    if not all(isinstance(option, str) and option for option in choice):
        raise RequestError("choice must be strings of at least one character")
    _check_text("choice", "".join(choice))
    return tuple(choice)


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"{name} must be text, not {type(text).__name__}")
    if len(text) > LONGEST:
        raise RequestError(
            f"{name} has {len(text)} characters, more than the {LONGEST} that are allowed; write a smaller one"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} is not valid Unicode") from None
