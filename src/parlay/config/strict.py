"""Building frozen dataclasses from users' values."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from parlay.errors import ConfigError, brief, nearest, shown

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], what: str, also: Iterable[str] = ()) -> T:
    """Return `cls(**values)` after checking every key and every type.

    Args:
        cls: a frozen dataclass.
        values: names and plain values, as from keyword arguments or JSON.
        what: names the thing in error messages, such as `"option"`.
        also: further names to suggest for an unknown one.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type.
    """
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown {what} {shown(key)}{nearest(key, {*known, *also})}", param=str(key))
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{what} {name!r} is required", param=name)
    hints = _hints(cls)  # type: ignore[arg-type]
    given = {name: _whole(value, hints[name]) for name, value in values.items()}
    try:
        return msgspec.convert(given, cls)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise _named(str(error), what, hints) from None
    except UnicodeEncodeError:
        raise ConfigError(f"{what}: a text is not valid Unicode") from None


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _whole(value: Any, hint: Any) -> Any:
    """Return a value with integers in place of floats such as 8.0, which JSON does not tell apart."""
    members = _members(hint)
    if isinstance(value, float) and int in members and float not in members and value.is_integer():
        return int(value)
    if isinstance(value, list) and any(get_origin(member) in (list, tuple) for member in members):
        (inner, *_) = next(get_args(member) for member in members if get_origin(member) in (list, tuple))
        return (
            [_whole(one, inner) for one in value] if float in map(type, value) or list in map(type, value) else value
        )
    return value


def _named(message: str, what: str, hints: Mapping[str, Any]) -> ConfigError:
    """Return an error of msgspec's with the key at its front, and behind it the words that the key may have."""
    found = re.fullmatch(r"(.*?) - at `\$\.(\w+)(.*)`", message, re.DOTALL)
    if found is None:
        return ConfigError(f"{what}: {brief(message)}")
    wrong, name, rest = found.groups()
    hint = None if rest else hints[name]
    words = [word for one in _members(hint) if get_origin(one) is Literal for word in get_args(one)]
    known = f"; it is one of {', '.join(map(shown, words))}" if words else ""
    return ConfigError(f"{what} {name}{rest}: {brief(wrong[:1].lower() + wrong[1:])}{known}", param=name)
