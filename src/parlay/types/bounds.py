"""Bounds of a dataclass's numbers and booleans, read from its annotations and checked where users' values come in.

A bound is written once, at the field: `Annotated[int, Meta(ge=1)]`. The OpenAPI document is made from the same
annotations (`server/openapi.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from parlay.errors import RequestError, nearest, shown

T = TypeVar("T")
_WORDS = {bool: "true or false", int: "an integer", float: "a number"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number or a boolean.

    Attributes:
        kind: bool, int or float.
        optional: whether None is a value.
        low, high: bounds; None where there is none.
        above: whether the lower bound is exclusive.
        instead: advice for values out of bounds.
    """

    kind: type
    optional: bool
    low: float | None = None
    high: float | None = None
    above: bool = False
    instead: str = ""

    @classmethod
    def of(cls, kind: type, *notes: Any, optional: bool = False) -> "Scalar":
        """Return what the parts of an `Annotated` say."""
        meta = next((note for note in notes if isinstance(note, Meta)), Meta())
        low, high = meta.ge if meta.gt is None else meta.gt, meta.le
        if high is None:  # msgspec takes bounds of 63 bits alone
            high = (meta.extra_json_schema or {}).get("maximum")
        instead = (meta.extra or {}).get("instead", "")
        return cls(kind, optional, low, high, meta.gt is not None, instead and f"; {instead}")

    def check(self, name: str, value: object, param: str | None = None) -> Any:
        """Return a value as `kind`, from whatever library its number is.

        Args:
            name: name of the value in error messages.
            value: the value that a user gave.
            param: the parameter that it is part of; None if it is one itself.

        Raises:
            RequestError: it is none, or out of bounds.
        """
        if value is None and self.optional:
            return None
        number = self._number(value)
        if number is None:
            raise RequestError(f"{name} must be {_WORDS[self.kind]}, not {shown(value)}", param=param or name)
        low, high = self.low, self.high
        if self.above and number == low:
            raise RequestError(f"{name} must be above {low:g}{self.instead}", param=param or name)
        if not (low is None or low <= number) or not (high is None or number <= high):
            bounds = f"at least {_written(low)}" if high is None else f"between {_written(low)} and {_written(high)}"
            raise RequestError(f"{name} must be {bounds}, not {shown(number)}{self.instead}", param=param or name)
        return number

    def _number(self, value: object) -> Any:
        """Return a value as a plain number of this kind; None if it is none."""
        if self.kind is bool or isinstance(value, bool):
            return value if isinstance(value, bool) and self.kind is bool else None
        if self.kind is int:  # JSON does not tell 1.0 from 1
            if isinstance(value, float) and value.is_integer():
                return int(value)
            return int(value) if isinstance(value, Integral) else None
        try:
            return float(value) if isinstance(value, Real) else None
        except OverflowError:
            return inf


def scalar(hint: Any) -> Scalar | None:
    """Return what an annotation says, if it is a number's or a boolean's."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    one, *more = [member for member in members if member is not NoneType]
    kind, *notes = get_args(one) if get_origin(one) is Annotated else (one,)
    return Scalar.of(kind, *notes, optional=NoneType in members) if kind in _WORDS and not more else None


@cache
def scalars(cls: type) -> Mapping[str, Scalar]:
    """Return the numbers and booleans of a dataclass by their names."""
    found = {name: scalar(hint) for name, hint in get_type_hints(cls, include_extras=True).items()}
    return {name: one for name, one in found.items() if one is not None}


def check_scalars(made: Any) -> None:
    """Convert a frozen dataclass's numbers and booleans to their annotated types.

    Raises:
        RequestError: one is none, or out of bounds.
    """
    for name, one in scalars(made.__class__).items():
        object.__setattr__(made, name, one.check(name, getattr(made, name)))


def from_mapping(cls: type[T], value: object, param: str, example: str) -> T:
    """Return a parameter's value as a dataclass, whose fields a mapping may give; None leaves one out.

    Args:
        cls: the dataclass, which refuses values of its own.
        value: the value that a user gave.
        param: the parameter.
        example: example of a mapping, for error messages.

    Raises:
        RequestError: it is no mapping, or has an unknown key.
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise RequestError(f"{param} must be a mapping such as {example}, not {shown(value)}")
    given = {key: one for key, one in value.items() if one is not None}
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise RequestError(f"unknown key {shown(key)} in {param}{nearest(key, known)}")
    return cls(**given)


def _written(bound: float | None) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
