"""Every error parlay raises on purpose.

ParlayError
 ├─ ConfigError      an option is unknown, out of range, or contradicts another
 ├─ ModelError       a model cannot be found, read, or served
 ├─ RequestError     one request cannot be served; others are unaffected
 │   └─ EngineFaultError  the engine failed on that one request, by no fault of the client
 ├─ EngineDeadError  the engine's process died or is being restarted; the same request may be sent again
 │   └─ RankError    a process that shares the model's layers ended or hangs; the engine has to start again
 └─ CapacityError    memory does not suffice for what was asked
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class ParlayError(Exception):
    """Base of all errors that parlay raises on purpose; the message is one sentence with the remedy.

    Attributes:
        param: the parameter or field at fault, where there is one.
    """

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        """Say what is wrong, and with which parameter."""
        super().__init__(message)
        self.param = param


class ConfigError(ParlayError, ValueError):
    """An option is unknown, out of range, or contradicts another."""


class ModelError(ParlayError):
    """A model cannot be found, read, or served."""


class RequestError(ParlayError, ValueError):
    """One request cannot be served; the others of its batch are unaffected."""


class TemplateRefusalError(RequestError):
    """A chat template refuses these messages; it may take others."""


class ContextLengthError(RequestError):
    """The prompt leaves no room for output in the model's context."""


class EngineFaultError(RequestError):
    """The engine failed on one request, by no fault of the client; others are unaffected."""


class EngineDeadError(ParlayError):
    """The engine's process died, or is being started; the same request may be sent again."""


class RankError(EngineDeadError):
    """A process that shares a model's layers has ended or hangs; the engine has to start again."""


class CapacityError(ParlayError, MemoryError):
    """Memory does not suffice for what was asked."""


@contextmanager
def about(param: str) -> Iterator[None]:
    """A region whose errors are about one parameter, unless they name another."""
    try:
        yield
    except ParlayError as error:
        error.param = error.param or param
        raise


_LONG = 200  # characters of a value that a message shows
_MOST_NAMES = 10  # that a message lists
_MOST_SEARCHED = 1000  # among which the nearest is searched


def shown(value: object) -> str:
    """Return any value for a message: in one line, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, or a mistake of the object's own
        return f"a value of type {type(value).__name__}"
    return brief(text)


def brief(text: str) -> str:
    """Return a text in one line, cut where it is long."""
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= _LONG else text[:_LONG] + "..."


def sized(size: int) -> str:
    """Return a number of bytes for a message, with its unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def visible(text: str, keep: str = "") -> str:
    """Return a text for a terminal: whatever moves its cursor, colours it or turns its direction is escaped.

    Args:
        text: a text from any source.
        keep: control characters that stay, such as the ends of lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the known name closest to `name`, or a list of known names."""
    names = sorted(set(known))
    searched = isinstance(name, str) and len(name) <= _LONG and len(names) <= _MOST_SEARCHED
    close = get_close_matches(str(name), names, n=1) if searched else []
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {listed(names)})" if names else ""


def listed(names: Iterable[str]) -> str:
    """Return names for a message: the first of them where there are many."""
    ordered = sorted(set(names))
    return ", ".join(ordered[:_MOST_NAMES]) + (", ..." if len(ordered) > _MOST_NAMES else "")
