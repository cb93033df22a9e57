"""Tables on a terminal and elsewhere."""

import io

import pytest

from parlay.cli.report import table

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
