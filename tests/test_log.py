"""What programs write to a terminal: what is repeated, and what a terminal must not obey."""

import io
import logging
import unicodedata

import pytest
from hostile import TERMINAL
from rich.console import Console
from rich.logging import RichHandler

from parlay import log
from parlay.errors import visible


class Program:
    """The logger as a program has it, writing to a text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logger = logging.Logger("program")
        monkeypatch.setattr(log, "logger", self.logger)
        log.configure()
        log.configure()  # a second call adds nothing
        (handler,) = self.logger.handlers
        assert isinstance(handler, RichHandler)
        self.out = io.StringIO()
        handler.console = Console(file=self.out, width=200)

    def lines(self) -> list[str]:
        return [line.strip() for line in self.out.getvalue().splitlines()]

    def count(self, words: str) -> int:
        return self.out.getvalue().count(words)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("PARLAY_LOG", "info")
    return Program(monkeypatch)


def test_a_warning_is_said_once(program: Program) -> None:
    for level in (logging.INFO, logging.WARNING):
        for number in (1, 2, 1, 1, 2):
            program.logger.log(level, "level %d number %d", level, number)
        assert program.count(f"level {level} number 1") == program.count(f"level {level} number 2") == 1


def test_an_error_is_said_each_time_with_its_count(program: Program) -> None:
    """A process that crashes again and again would otherwise look like one that crashed once."""
    for _ in range(3):
        program.logger.error("the engine's process died (exit code %s)", -9)
        program.logger.critical("worse")
    assert program.count("died (exit code -9)") == program.count("worse") == 3
    assert program.count("died (exit code -9) (2 times by now)") == 1
    assert program.count("died (exit code -9) (3 times by now)") == 1


def test_a_traceback_comes_each_time(program: Program) -> None:
    for _ in range(2):
        program.logger.error("a request failed", exc_info=ValueError("bad\x1b[2J"))
    assert program.count("a request failed (2 times by now)") == 1
    assert program.count("ValueError: bad\\x1b[2J") == 2
    assert "\x1b" not in program.out.getvalue()


def test_what_was_said_long_ago_is_said_again(program: Program) -> None:
    for text in ("first", *map(str, range(200, 200 + log._KEPT)), "first"):
        program.logger.warning("<%s>", text)
    assert program.count("<first>") == 2


@pytest.mark.parametrize("text", TERMINAL.values(), ids=TERMINAL)
def test_what_a_terminal_would_obey_is_escaped(text: str, program: Program) -> None:
    assert obeyed(visible(text)) == set()
    program.logger.error("%s", text.replace("\n", ""))
    assert obeyed(program.out.getvalue()) <= {"\n"}


def obeyed(text: str) -> set[str]:
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def test_what_is_plain_stays() -> None:
    for text in ("", "a b", "naïve 日本語 🚀", "a\\nb"):
        assert visible(text) == text
    assert visible("a\nb\tc\x1b", keep="\n\t") == "a\nb\tc\\x1b"
