"""A JSON schema without what is not enforced, and the search for what the compiler refuses of the rest."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from parlay.errors import RequestError

_ATTEMPTS = 48  # attempts to compile one schema with more or less of it
_PATIENCE = 3.0  # seconds for all of them

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A keyword that is not enforced.

    Attributes:
        path: place of the keyword, as a JSON pointer that begins with `#`.
        why: reason why it is not enforced.
    """

    path: str
    why: str = "is not enforced"

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


@dataclass(slots=True)
class Doubt:
    """A constraint that the compiler may refuse, and what may take its place.

    Attributes:
        where: the reduced schema or mapping that has it.
        options: keys and values, one option after another; the last is without the constraint.
    """

    where: dict[str, Any]
    path: str
    options: list[dict[str, Any]]
    at: int = 0

    def choose(self, at: int) -> None:
        """Put an option in the place of the present one."""
        for key in self.options[self.at]:
            self.where.pop(key, None)
        self.at = at
        self.where.update(self.options[at])


@dataclass(slots=True)
class Reduced:
    """A schema without what is not enforced.

    Attributes:
        schema: the schema that is left; the given one is not altered.
        dropped: the keywords that were dropped.
    """

    schema: dict[str, Any]
    dropped: list[Dropped] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    def forget(self, where: Any, key: str, at: Path) -> None:
        """Drop one more keyword, which stands in a part of the reduced schema."""
        del where[key]
        self.doubts = [doubt for doubt in self.doubts if doubt.where is not where or key not in doubt.options[0]]
        self.dropped.append(Dropped("/".join((*at, key))))

    def settle(self, fault: Callable[[dict[str, Any]], str]) -> str:
        """Drop the constraints which the compiler refuses; return what is wrong even without them, or nothing.

        Without doubts nothing is compiled.

        Args:
            fault: function that compiles a schema and returns what is wrong with it; empty if nothing.
        """
        left, end = _ATTEMPTS, monotonic() + _PATIENCE

        def refused() -> bool:
            nonlocal left
            left -= 1
            if monotonic() > end:
                raise RequestError(
                    "it takes too long to see which constraints can be enforced; write a smaller schema"
                )
            return left < 0 or bool(fault(self.schema))

        def keep(group: list[Doubt]) -> None:
            for doubt in group:
                doubt.choose(0)
            if not refused():
                return
            for doubt in group:
                doubt.choose(len(doubt.options) - 1)
            if len(group) > 1:
                keep(group[: len(group) // 2])
                keep(group[len(group) // 2 :])
                return
            (doubt,) = group
            for at in range(1, len(doubt.options) - 1):
                doubt.choose(at)
                if not refused():
                    self.dropped.append(Dropped(doubt.path, "is enforced in part"))
                    return
            doubt.choose(len(doubt.options) - 1)
            self.dropped.append(Dropped(doubt.path))

        if not self.doubts or not fault(self.schema):
            return ""
        for doubt in self.doubts:
            doubt.choose(len(doubt.options) - 1)
        if trouble := fault(self.schema):
            return trouble
        keep(self.doubts)
        return ""
