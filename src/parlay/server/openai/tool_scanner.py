"""An answer that is searched for calls while it grows: what is certain is returned at once, the rest is waited for.

Searches are generators, and each `yield` waits for more of the answer. So they are written as if all of it were
there, and look at each character about once.
"""

import json
import re
from collections.abc import Collection, Generator
from functools import cache
from typing import Literal, TypeVar

_T = TypeVar("_T")
Wait = Generator[None, None, _T]  # gives its result once enough of the answer is there
Given = tuple[Literal["text", "name", "arguments"], str]

_SOLID = re.compile(r"\S")
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_CONTROL = re.compile(r"[\x00-\x1f]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR_END = re.compile(r"[\s,}\]]")


class Scanner:
    """One answer.

    Attributes:
        ended: whether all of it is there.
        done: up to where it was given, or is part of a call.
        called: number of calls that have begun.
    """

    def __init__(self, functions: Collection[str]) -> None:
        """Start with an empty answer; `functions` are those that may be called."""
        self._text, self._begin = "", 0  # what may be looked at again, and where in the answer that begins
        self.ended = False
        self.done = 0
        self.called = 0
        self._functions = functions
        self._given: list[Given] = []

    @property
    def end(self) -> int:
        """How much of the answer is there. Places count its characters from the beginning."""
        return self._begin + len(self._text)

    def feed(self, piece: str, ended: bool) -> None:
        """Add what came; what was given already is dropped, so that a long answer is not copied for every token."""
        self._text, self._begin = self._text[self.done - self._begin :] + piece, self.done
        self.ended = ended

    def cut(self, begin: int, end: int | None = None) -> str:
        """Return what stands from one place to before another, by default to the end."""
        return self._text[begin - self._begin : None if end is None else max(end, begin) - self._begin]

    def character(self, wanted: re.Pattern[str], at: int) -> tuple[int, str] | None:
        """Return where the first character from a place on is that matches a pattern, and which; None without any."""
        found = wanted.search(self._text, at - self._begin)
        return (self._begin + found.start(), found[0]) if found else None

    def overlap(self, mark: str) -> int:
        """Return how many of the last characters may begin a mark."""
        return overlap(self._text, mark)

    def take(self) -> list[Given]:
        """Return what was found since the last time, in order: text, or a call's name and parts of its arguments."""
        given, self._given = self._given, []
        return given

    # Giving

    def say(self, end: int) -> None:
        """Give as text what stands before `end`."""
        if end > self.done:
            self._given.append(("text", self.cut(self.done, end)))
            self.done = end

    def knows(self, name: str) -> bool:
        """Whether there is such a function."""
        return name in self._functions

    def begin(self, name: str) -> bool:
        """Start a call; False if there is no such function."""
        if not self.knows(name):
            return False
        self.called += 1
        self._given.append(("name", name))
        return True

    def add(self, arguments: str) -> None:
        """Give more of a call's arguments."""
        if arguments:
            self._given.append(("arguments", arguments))

    # Looking

    def char(self, at: int) -> Wait[str]:
        """Return a character; nothing behind the end."""
        while at >= self.end and not self.ended:
            yield
        return self.cut(at, at + 1)

    def space(self, at: int) -> Wait[int]:
        """Return where the next character is that is no space."""
        while (found := self.character(_SOLID, at)) is None:
            at = max(at, self.end)
            if self.ended:
                return at
            yield
        return found[0]

    def starts(self, mark: str, at: int) -> Wait[bool]:
        """Return whether a mark stands there."""
        while not self.ended and self.end - at < len(mark) and mark.startswith(self.cut(at)):
            yield
        return self.cut(at, at + len(mark)) == mark

    def behind(self, mark: str, at: int) -> bool:
        """Whether a mark ends there that has not been given yet."""
        return at - len(mark) >= self.done and self.cut(at - len(mark), at) == mark

    def starts_any(self, marks: tuple[str, ...], at: int) -> Wait[bool]:
        """Return whether one of some marks stands there."""
        for mark in marks:
            if (yield from self.starts(mark, at)):
                return True
        return False

    def first(self, marks: tuple[str, ...], at: int) -> tuple[int, str]:
        """Return where the first of some marks stands, and which; without any, where one may yet begin."""
        found = _any_of(marks).search(self._text, at - self._begin) if marks else None
        if found:
            return self._begin + found.start(), found[0]
        partial = 0 if self.ended else max(map(self.overlap, marks), default=0)
        return max(at, self.end - partial), ""

    def find(self, marks: tuple[str, ...], at: int) -> Wait[tuple[int, str]]:
        """Return where the first of some marks stands, and which; at the end of the answer, no mark."""
        while True:
            at, mark = self.first(marks, at)
            if mark or self.ended:
                return at, mark
            yield

    # JSON

    def string(self, at: int) -> Wait[int | None]:
        """Return where a string ends that begins here; None if it does not."""
        if (yield from self.char(at)) != '"':
            return None
        at += 1
        while True:
            found = self.character(_IN_STRING, at)
            if found is None:
                at = self.end
            elif found[1] == '"':
                return found[0] + 1
            elif found[0] + 1 < self.end:
                at = found[0] + 2
                continue
            else:
                at = found[0]
            if self.ended:
                return None
            yield

    def value(self, at: int) -> Wait[int | None]:
        """Return where a value ends that begins here, which need not be proper within; None if it does not."""
        char = yield from self.char(at)
        if char == '"':
            return (yield from self.string(at))
        if char in ("{", "["):
            return (yield from self.brackets(at))
        while (found := self.character(_SCALAR_END, at)) is None:
            at = self.end
            if self.ended:
                return None
            yield
        return found[0]

    def brackets(self, at: int, *, give: bool = False) -> Wait[int | None]:
        """Return behind the bracket that closes the one here; None if the answer ends before.

        Args:
            at: where the first bracket is.
            give: add what is between to a call's arguments as it comes. Line ends and the like within strings, which
                JSON does not allow and models write nevertheless, become escapes.
        """
        depth, given, parts = 0, at, list[str]()
        quoted = False
        while True:
            found = self.character(_IN_STRING if quoted else _STRUCTURE, at)
            if found is not None and found[1] == "\\" and found[0] + 1 == self.end:
                at, found = found[0], None  # what is escaped is yet to come
            elif found is None:
                at = self.end
            elif found[1] == "\\":
                at = found[0] + 2
            else:
                at = found[0] + 1
                if give and found[1] == '"':
                    parts.append(self._written(given, at, quoted))
                    given = at
                quoted ^= found[1] == '"'
                depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[1], 0) if not quoted else 0
            if found is not None and depth:
                continue
            if give:
                end = at if found is not None else self.end
                self.add("".join([*parts, self._written(given, end, quoted)]))
                given, self.done = end, min(at, end)
                parts.clear()
            if found is not None:
                return at
            if self.ended:
                return None
            yield

    def _written(self, begin: int, end: int, quoted: bool) -> str:
        """Return what stands there, with escapes if it is within a string."""
        return _escaped(self.cut(begin, end)) if quoted else self.cut(begin, end)

    def give(self, at: int) -> Wait[int]:
        """Add a value that begins here to a call's arguments, brackets as they grow; return behind it."""
        if (yield from self.char(at)) in ("{", "["):
            end = yield from self.brackets(at, give=True)
        else:
            end = yield from self.value(at)
            self.add(self.cut(at, end))
        return self.end if end is None else end

    def key(self, at: int) -> Wait[tuple[str, int] | None]:
        """Return a key that stands here, and where its value begins; None if there is none."""
        end = yield from self.string(at)
        if end is None:
            return None
        colon = yield from self.space(end)
        if (yield from self.char(colon)) != ":":
            return None
        try:
            key = json.loads(self.cut(at, end))
        except ValueError:
            return None
        return key, (yield from self.space(colon + 1))


def strict(text: str) -> str:
    """Return JSON with escapes for what may not stand in its strings; see `Scanner.brackets`."""
    return _STRING.sub(lambda found: _escaped(found[0]), text)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def overlap(text: str, mark: str) -> int:
    """Return how many of a text's last characters may begin a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))
