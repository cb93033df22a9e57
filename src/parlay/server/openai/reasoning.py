"""Reasoning that a model writes before its answer, separated from the answer.

Sources: the chat templates of the families; names are those that vLLM gives to its parsers.
"""

from dataclasses import dataclass
from typing import get_args

from parlay.config.server import ReasoningParser


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around reasoning.

    Attributes:
        begin, end: the marks.
        special: whether they are special tokens, which a text has only if asked for.
    """

    begin: str
    end: str
    special: bool = False


_THINK = Marks("<think>", "</think>")
MARKS: dict[str, Marks | None] = {
    "none": None,
    "deepseek_r1": _THINK,
    "granite": Marks("Here is my thought process:", "Here is my response:"),
    "mistral": Marks("[THINK]", "[/THINK]", special=True),
    "qwen3": _THINK,
}
assert {*MARKS, "auto"} == {*get_args(ReasoningParser)}


def marks_of(parser: ReasoningParser, template: str | None) -> Marks | None:
    """Return the marks around a model's reasoning; with `auto` those that its chat template has, if any."""
    if parser != "auto":
        return MARKS[parser]
    return next((marks for marks in MARKS.values() if marks is not None and marks.begin in (template or "")), None)


class ReasoningReader:
    """Splits an answer while it grows."""

    def __init__(self, marks: Marks, prompt: str) -> None:
        """Begin.

        Args:
            marks: around reasoning.
            prompt: of the answer; where it ends with the first mark, the answer begins with reasoning.
        """
        self._marks = marks
        self._text = ""
        self._state = "reasoning" if prompt.rstrip().endswith(marks.begin) else "undecided"
        self.tokens = 0

    def feed(self, text: str, finished: bool, tokens: int = 0) -> tuple[str, str]:
        """Return what the next piece adds to the reasoning and to the answer proper.

        Args:
            text: the piece.
            finished: whether it is the last one.
            tokens: that it has; they are counted as long as there is reasoning.
        """
        reasoning = ""
        self._text += text
        if self._state == "undecided":
            begun = self._text.lstrip()
            if begun.startswith(self._marks.begin):
                self._state, self._text = "reasoning", begun.removeprefix(self._marks.begin)
            elif finished or not self._marks.begin.startswith(begun):
                self._state = "answer"
            else:
                return "", ""
        if self._state == "reasoning":
            self.tokens += tokens
            reasoning, mark, rest = self._text.partition(self._marks.end)
            if mark:
                self._state, self._text = "answer", rest.lstrip()
                self._leading = not self._text
                return reasoning, self._take()
            held = 0 if finished else _overlap(reasoning, self._marks.end)
            reasoning, self._text = reasoning[: len(reasoning) - held], reasoning[len(reasoning) - held :]
            return reasoning, ""
        return reasoning, self._take()

    _leading = False  # whether line ends between reasoning and answer may still come

    def _take(self) -> str:
        text, self._text = (self._text.lstrip() if self._leading else self._text), ""
        self._leading = self._leading and not text
        return text


def _overlap(text: str, mark: str) -> int:
    """Return how many of the last characters may begin a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
