"""Building frozen dataclasses from users' values."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

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
            raise ConfigError(f"{what} {name!r} is needed", param=name)
    try:
        return msgspec.convert(dict(values), cls)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise _named(str(error), what) from None
    except UnicodeEncodeError:
        raise ConfigError(f"{what}: a text is not valid Unicode") from None


def _named(message: str, what: str) -> ConfigError:
    """Return an error of msgspec's with the key at its front."""
    found = re.fullmatch(r"(.*?) - at `\$\.(\w+)(.*)`", message, re.DOTALL)
    if found is None:
        return ConfigError(f"{what}: {brief(message)}")
    wrong, name, rest = found.groups()
    return ConfigError(f"{what} {name}{rest}: {brief(wrong[:1].lower() + wrong[1:])}", param=name)
