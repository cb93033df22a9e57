"""What a terminal shows of text that comes token by token: whole words, and no letter lost."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from parlay.cli.serving import pieces_of
from parlay.cli.wrap import Wrapper


def screen(pieces: Sequence[str], width: int) -> list[str]:
    """Return the lines of a terminal that knows the two controls that a wrapper uses."""
    wrapper, lines = Wrapper(), [""]
    for piece in pieces:
        for part, _ in wrapper.add(piece, "", width):
            control = re.fullmatch(r"\x1b\[(\d+)D\x1b\[K\n", part)
            if control:
                for _ in range(int(control[1])):
                    lines[-1] = lines[-1][:-1] if cell_len(lines[-1][-1]) == 1 else lines[-1][:-1] + " "
                lines.append("")
                continue
            for letter in part:
                if letter == "\n" or cell_len(lines[-1] + letter) > width + 1:
                    lines.append("")
                lines[-1] += letter.strip("\n")
    return lines


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        (["The quick", " brown", " fox"], ["The quick ", "brown fox"]),
        (["The qu", "ick", " bro", "wn fox"], ["The quick ", "brown fox"]),
        (["a b", "\n", "", "\nlonger than", " that"], ["a b", "", "longer ", "than that"]),
        (["supercalifragilistic"], ["supercalifr", "agilistic"]),  # the terminal breaks what fits no line
        (["a super", "califragilistic x", " and y"], ["a ", "supercalifr", "agilistic ", "x and y"]),
        (["東京は日本", "の首都です"], ["東京は日本", "の首都です"]),
    ],
)
def test_words_are_whole(pieces: list[str], lines: list[str]) -> None:
    assert screen(pieces, 10) == lines


@given(st.lists(st.text("ab \n", max_size=7), max_size=12), st.integers(4, 20))
def test_no_letter_is_lost(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    shown = screen(pieces, width)
    assert "".join(shown).replace(" ", "") == text.replace("\n", "").replace(" ", "")
    for line in shown:
        assert len(line.rstrip()) <= width or " " not in line.strip(), line
    words = [word for line in shown for word in line.split()]
    assert len(words) == len(text.split()) or max(map(len, text.split())) > width


def test_pieces_without_a_style_are_pieces_too() -> None:
    text = Text("the ")
    text.append("river", style="bold green").append(" Nile").append(" in", style="bold cyan")
    pieces = pieces_of(text)
    assert pieces == [("the ", ""), ("river", "bold green"), (" Nile", ""), (" in", "bold cyan")]
    assert pieces_of(Text("x")) == [("x", "")]
    assert pieces_of(Text("")) == []
