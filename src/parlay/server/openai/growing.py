"""A text that grows piece by piece and is searched meanwhile, without copying characters when others come."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache


class GrowingText:
    """Places in it count characters from its beginning.

    Attributes:
        end: characters that are there.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._begins: list[int] = []
        self.end = 0

    def add(self, piece: str) -> None:
        """Add what came."""
        if piece:
            self._pieces.append(piece)
            self._begins.append(self.end)
            self.end += len(piece)

    def cut(self, begin: int, end: int | None = None) -> str:
        """Return what stands from one place to before another, by default to the end."""
        end = self.end if end is None else end
        return "".join(piece[max(0, begin - start) : end - start] for start, piece in self._from(begin, end))

    def character(self, wanted: re.Pattern[str], at: int) -> tuple[int, str] | None:
        """Return where the first character from a place on is that matches a pattern, and which; None without any."""
        for start, piece in self._from(at, self.end):
            if match := wanted.search(piece, max(0, at - start)):
                return start + match.start(), match[0]
        return None

    def first(self, marks: tuple[str, ...], at: int) -> tuple[int, str] | None:
        """Return where the first of some marks stands from a place on, and which; None without any."""
        if not marks:
            return None
        wanted, reach = _any_of(marks), max(map(len, marks)) - 1
        for start, piece in self._from(at, self.end):
            # What begins in this piece may end in later ones.
            edge = start + len(piece)
            seam = max(at, edge - reach)
            over = wanted.search(self.cut(seam, edge + reach))
            within = wanted.search(piece, max(0, at - start))
            found = [(start + within.start(), within[0])] if within else []
            found += [(seam + over.start(), over[0])] if over else []
            if found:
                return min(found)
        return None

    def overlap(self, mark: str) -> int:
        """Return how many of the last characters may begin a mark."""
        tail = self.cut(max(0, self.end - len(mark) + 1))
        return next((n for n in range(len(tail), 0, -1) if tail.endswith(mark[:n])), 0)

    def _from(self, begin: int, end: int) -> Iterator[tuple[int, str]]:
        """Yield the pieces that have something of a part of the text, with the places where they begin."""
        for i in range(max(0, bisect_right(self._begins, begin) - 1), len(self._pieces)):
            if self._begins[i] >= end:
                return
            yield self._begins[i], self._pieces[i]


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))
