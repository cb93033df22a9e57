"""A text in pieces, against the same text as one string."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.server.openai.growing import GrowingText

TEXTS = st.lists(st.text("ab<>/ é", max_size=5), max_size=8)
WANTED = re.compile(r"[a<]")


def grown(pieces: list[str]) -> tuple[GrowingText, str]:
    text = GrowingText()
    for piece in pieces:
        text.add(piece)
    return text, "".join(pieces)


@given(TEXTS, st.data())
def test_parts(pieces: list[str], data: Any) -> None:
    text, whole = grown(pieces)
    begin, end = (data.draw(st.integers(0, len(whole) + 2)) for _ in range(2))
    assert text.end == len(whole)
    assert text.cut(begin, end) == whole[begin:end]
    assert text.cut(begin) == whole[begin:]


@given(TEXTS, st.data())
def test_characters(pieces: list[str], data: Any) -> None:
    text, whole = grown(pieces)
    at = data.draw(st.integers(0, len(whole)))
    match = WANTED.search(whole, at)
    assert text.character(WANTED, at) == (None if match is None else (match.start(), match[0]))


@pytest.mark.parametrize("marks", [(), ("a",), ("<ab", "/b"), ("<a><b>", "a")])
@given(TEXTS, st.data())
def test_marks(marks: tuple[str, ...], pieces: list[str], data: Any) -> None:
    text, whole = grown(pieces)
    at = data.draw(st.integers(0, len(whole)))
    found = [(place, mark) for mark in marks if (place := whole.find(mark, at)) >= 0]
    assert text.first(marks, at) == (min(found) if found else None)
    for mark in marks:
        begun = [n for n in range(1, len(mark)) if whole.endswith(mark[:n])]
        assert text.overlap(mark) == max(begun, default=0)
