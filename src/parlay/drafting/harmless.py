"""Errors of drafting that are no proposer's: they cost drafts, never a request, whose answer needs none."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from parlay.drafting.state import Drafted
from parlay.log import logger

_MOST = 8  # errors after which there are no more drafts
_FORGIVEN = 10_000  # steps without an error after which those before do not count

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Mishaps:
    """The errors so far.

    Attributes:
        given_up: whether there were so many that nothing is drafted any more.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._count = self._last = 0

    def add(self, error: Exception, step: int) -> None:
        """Count and log one."""
        self._count = 1 if step - self._last > _FORGIVEN else self._count + 1
        self._last, self.given_up = step, self.given_up or self._count >= _MOST
        rest = "nothing is drafted any more" if self.given_up else "what was learnt is learnt anew"
        logger.error("drafting failed (%s: %s); %s", type(error).__name__, error, rest, exc_info=error)


class Recovers(Protocol):
    """Who can go on after an error."""

    def stumble(self, error: Exception, *given: Any) -> None:
        """Recover from an error in a method that was given this."""
        ...


Own = TypeVar("Own", bound=Recovers)


def harmless(
    otherwise: Callable[[], Result],
) -> Callable[[Callable[Concatenate[Own, Given], Result]], Callable[Concatenate[Own, Given], Result]]:
    """Mark a method of drafting whose errors end nothing: it then returns `otherwise()`."""

    def mark(work: Callable[Concatenate[Own, Given], Result]) -> Callable[Concatenate[Own, Given], Result]:
        @wraps(work)
        def contained(self: Own, /, *given: Given.args, **named: Given.kwargs) -> Result:
            try:
                return work(self, *given, **named)
            except Exception as error:
                self.stumble(error, *given)
                return otherwise()

        return contained

    return mark


def requests_of(given: Sequence[Any]) -> Sequence[Drafted]:
    """Return the requests that a method was given first, if it was given any."""
    first = given[0] if given else ()
    return [one for one in (first if isinstance(first, tuple | list) else [first]) if hasattr(one, "drafting")]
