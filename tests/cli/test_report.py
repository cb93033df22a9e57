"""Tables on a terminal and elsewhere."""

import argparse
import io

import pytest

from parlay.cli.report import print_json, table

WORD = "a-word-of-some-length"


def test_piped_tables_are_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = {f"column{i}": (f"the title of column {i}", "{}") for i in range(12)}
    table([{name: f"{WORD}{name}" for name in columns}], columns)
    text = capsys.readouterr().out
    assert "…" not in text
    for name, (title, _) in columns.items():
        assert title in text
        assert f"{WORD}{name}" in text
    assert max(map(len, text.splitlines())) < 500  # what is there, and no padding to the end of the world


ROW = {
    "method": "ngram",
    "speed_up": 0.62,
    "repetitions": 9,
    "interval": [0.6, 0.7],
    "precise": True,
    "same_tokens": True,
}
COLUMNS = {
    "method": ("method", "{}"),
    "speed_up": ("ratio", "{:.2f}"),
    "interval": ("95 %", "{0[0]:.2f}-{0[1]:.2f}"),
    "same_tokens": ("same", "{}"),
}


def test_what_is_not_known_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    few = {"interval": None, "precise": False}
    rows = [
        ROW,
        ROW | {"precise": False},
        ROW | few | {"repetitions": 1},
        ROW | few | {"repetitions": 7, "same_tokens": False},
    ]
    table(rows, COLUMNS)
    _, _, good, wide, one, seven, *notes = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert good.split() == ["ngram", "0.62", "0.60-0.70", "yes"]
    assert wide.split() == ["ngram", "0.62", "0.60-0.70", "*", "yes"]
    assert one.split() == ["ngram", "0.62", "(1", "run)", "yes"]
    assert seven.split() == ["ngram", "0.62", "(7", "runs)", "NO"]
    assert len(notes) == 2
    assert "ratio: times plain decoding" in notes[1]
    table([ROW], COLUMNS)
    assert "wider" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("terminal", "asked", "printed"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_programs_get_json(terminal: bool, asked: bool, printed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", screen)
    print_json(argparse.Namespace(json=asked), {"rows": []})
    assert (screen.getvalue() == '{"rows": []}\n') == printed


def test_a_terminal_has_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    table([{"a": WORD * 5}], {"a": ("title", "{}")})
    assert max(map(len, screen.getvalue().splitlines())) < 100
