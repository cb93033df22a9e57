"""Reasoning that a model writes before its answer, separated from the answer.

Sources: the chat templates of the families; names are those that vLLM gives to its parsers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from tokenizers import Tokenizer

from parlay.config.server import ReasoningParser


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around reasoning.

    Attributes:
        begin, end: the marks.
        special: whether they are special tokens, which a text has only if asked for.
        begun: whether an answer begins with reasoning even where the first mark is missing.
    """

    begin: str
    end: str
    special: bool = False
    begun: bool = False


_THINK = Marks("<think>", "</think>")
MARKS: dict[str, Marks | None] = {
    "none": None,
    "deepseek_r1": Marks("<think>", "</think>", begun=True),
    "granite": Marks("Here is my thought process:", "Here is my response:"),
    "mistral": Marks("[THINK]", "[/THINK]", special=True),
    "qwen3": _THINK,
}
assert {*MARKS, "auto"} == {*get_args(ReasoningParser)}


def marks_of(parser: ReasoningParser, template: str | None) -> Marks | None:
    """Return the marks around a model's reasoning; with `auto` those that its chat template has, if any."""
    if parser != "auto":
        return MARKS[parser]
    # Not every model whose template has the marks reasons.
    known = [marks for marks in MARKS.values() if marks is not None and not marks.begun]
    return next((marks for marks in known if marks.begin in (template or "")), None)


_STRIDE = 256  # tokens that are searched for the last mark at once


class ReasoningReader:
    """Splits an answer while it grows.

    Attributes:
        tokens: of the reasoning so far, its marks included; those of an answer's beginning that may yet become a mark
            are not among them.
    """

    def __init__(self, marks: Marks, prompt: str, tokenizer: Tokenizer) -> None:
        """Begin.

        Args:
            marks: around reasoning.
            prompt: of the answer; where it ends with the first mark, the answer begins with reasoning, and with the
                last one it has none.
            tokenizer: of the answer's tokens.
        """
        self._marks = marks
        self._tokenizer = tokenizer
        self._text = ""
        self._tokens: list[int] = []  # up to the end of the reasoning
        before = prompt.rstrip()
        self._state = "undecided"
        if before.endswith(marks.begin):
            self._state = "reasoning"
        elif marks.begun and before.endswith(marks.end):
            self._state = "answer"

    @property
    def tokens(self) -> int:
        """Of the reasoning so far, its marks included; the same however the answer is cut into pieces."""
        return 0 if self._state == "undecided" else len(self._tokens)

    def feed(self, text: str, finished: bool, tokens: Sequence[int] = ()) -> tuple[str, str]:
        """Return what the next piece adds to the reasoning and to the answer proper.

        Args:
            text: the piece.
            finished: whether it is the last one.
            tokens: that it has.
        """
        reasoning = ""
        self._text += text
        if self._state != "answer":
            self._tokens += tokens
        if self._state == "undecided":
            begun = self._text.lstrip()
            if begun.startswith(self._marks.begin):
                self._state, self._text = "reasoning", begun.removeprefix(self._marks.begin)
            elif not finished and self._marks.begin.startswith(begun):
                return "", ""
            elif self._marks.begun:
                self._state = "reasoning"
            else:
                self._state, self._tokens = "answer", []
        if self._state == "reasoning":
            reasoning, mark, rest = self._text.partition(self._marks.end)
            if mark:
                del self._tokens[self._end() :]
                self._state, self._text = "answer", rest.lstrip()
                self._leading = not self._text
                return reasoning, self._take()
            held = 0 if finished else _overlap(reasoning, self._marks.end)
            reasoning, self._text = reasoning[: len(reasoning) - held], reasoning[len(reasoning) - held :]
            return reasoning, ""
        return reasoning, self._take()

    def _end(self) -> int:
        """Return how many of the tokens there are up to the one that completes the last mark."""
        tokens, mark = self._tokens, self._marks.end
        for begin in range(0, len(tokens), _STRIDE):
            window = tokens[max(0, begin - len(mark)) : begin + _STRIDE]  # a token has at least one byte of the mark
            if self._has(window):
                low, high = 1, len(window)
                while low < high:  # the fewest tokens that have the mark
                    middle = (low + high) // 2
                    low, high = (low, middle) if self._has(window[:middle]) else (middle + 1, high)
                return max(0, begin - len(mark)) + low
        return len(tokens)

    def _has(self, tokens: list[int]) -> bool:
        return self._marks.end in self._tokenizer.decode(tokens, skip_special_tokens=False)

    _leading = False  # whether line ends between reasoning and answer may still come

    def _take(self) -> str:
        text, self._text = (self._text.lstrip() if self._leading else self._text), ""
        self._leading = self._leading and not text
        return text


def _overlap(text: str, mark: str) -> int:
    """Return how many of the last characters may begin a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
