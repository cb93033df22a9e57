"""An answer that is searched for calls while it grows: what is certain is given at once, the rest is waited for.

Those who search are generators, and each `yield` waits for more of the answer. So they are written as if all of it
were there, and look at each character about once.
"""

import json
import re
from collections.abc import Collection, Generator, Sequence
from typing import Literal, TypeVar

_T = TypeVar("_T")
Wait = Generator[None, None, _T]  # gives its result once enough of the answer is there
Given = tuple[Literal["text", "name", "arguments"], str]

_SPACE = re.compile(r"\s*")
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")


class Scanner:
    """One answer.

    Attributes:
        text: as far as it is there.
        ended: whether that is all.
        done: up to where it was given, or is part of a call.
        called: how many calls have begun.
    """

    def __init__(self, functions: Collection[str]) -> None:
        """Begin with an empty answer; `functions` are those that may be called."""
        self.text = ""
        self.ended = False
        self.done = 0
        self.called = 0
        self._functions = functions
        self._given: list[Given] = []

    def take(self) -> list[Given]:
        """Return what was found since the last time, in order: text, or a call's name and parts of its arguments."""
        given, self._given = self._given, []
        return given

    # Giving

    def say(self, end: int) -> None:
        """Give as text what stands before `end`."""
        if end > self.done:
            self._given.append(("text", self.text[self.done : end]))
            self.done = end

    def knows(self, name: str) -> bool:
        """Whether there is such a function."""
        return name in self._functions

    def begin(self, name: str) -> bool:
        """Begin a call; False if there is no such function."""
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
        while at >= len(self.text) and not self.ended:
            yield
        return self.text[at : at + 1]

    def space(self, at: int) -> Wait[int]:
        """Return where the next character is that is no space."""
        while True:
            match = _SPACE.match(self.text, at)
            at = match.end() if match else at
            if at < len(self.text) or self.ended:
                return at
            yield

    def starts(self, mark: str, at: int) -> Wait[bool]:
        """Return whether a mark stands there."""
        while not self.ended and len(self.text) - at < len(mark) and mark.startswith(self.text[at:]):
            yield
        return self.text.startswith(mark, at)

    def first(self, marks: Sequence[str], at: int) -> tuple[int, str]:
        """Return where the first of some marks stands, and which; without any, where one may yet begin."""
        found = [(place, mark) for mark in marks if (place := self.text.find(mark, at)) >= 0]
        if found:
            return min(found)
        partial = 0 if self.ended else max((overlap(self.text, mark) for mark in marks), default=0)
        return max(at, len(self.text) - partial), ""

    def find(self, marks: Sequence[str], at: int) -> Wait[tuple[int, str]]:
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
            match = _IN_STRING.search(self.text, at)
            if match is None:
                at = len(self.text)
            elif match[0] == '"':
                return match.end()
            elif match.end() < len(self.text):
                at = match.end() + 1
                continue
            else:
                at = match.start()
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
        while True:
            match = _SCALAR_END.search(self.text, at)
            if match is not None:
                return match.start()
            if self.ended:
                return None
            yield

    def brackets(self, at: int, *, give: bool = False) -> Wait[int | None]:
        """Return behind the bracket that closes the one here; None if the answer ends before.

        Args:
            at: where the first bracket is.
            give: add what is between to a call's arguments as it comes.
        """
        depth, given = 0, at
        quoted = False
        while True:
            match = (_IN_STRING if quoted else _STRUCTURE).search(self.text, at)
            if match is not None and match[0] == "\\" and match.end() == len(self.text):
                at, match = match.start(), None  # what is escaped is yet to come
            elif match is None:
                at = len(self.text)
            elif match[0] == "\\":
                at = match.end() + 1
            else:
                at = match.end()
                quoted ^= match[0] == '"'
                depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0) if not quoted else 0
            if match is not None and depth:
                continue
            if give:
                end = at if match is not None else len(self.text)
                self.add(self.text[given:end])
                given = end
            if match is not None:
                return at
            if self.ended:
                return None
            yield

    def give(self, at: int) -> Wait[int]:
        """Add a value that begins here to a call's arguments, brackets as they grow; return behind it."""
        if (yield from self.char(at)) in ("{", "["):
            end = yield from self.brackets(at, give=True)
        else:
            end = yield from self.value(at)
            self.add(self.text[at:end])
        return len(self.text) if end is None else end

    def key(self, at: int) -> Wait[tuple[str, int] | None]:
        """Return a key that stands here, and where its value begins; None if there is none."""
        end = yield from self.string(at)
        if end is None:
            return None
        colon = yield from self.space(end)
        if (yield from self.char(colon)) != ":":
            return None
        try:
            key = json.loads(self.text[at:end])
        except ValueError:
            return None
        return key, (yield from self.space(colon + 1))


def overlap(text: str, mark: str) -> int:
    """Return how many of the last characters may begin a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
