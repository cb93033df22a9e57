"""Reasoning that a model writes before its answer, separated from the answer.

Sources: the chat templates of the families; names are those that vLLM gives to its parsers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from tokenizers import Tokenizer

from parlay.config.server import ReasoningParser
from parlay.server.openai.atem import ATEM
from parlay.server.openai.harmony import HARMONY
from parlay.server.openai.messages import MESSAGE, MessageForm, MessageReader, thoughts_before
from parlay.server.openai.tool_grammars import literal, special_token
from parlay.server.openai.tool_scanner import overlap


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around reasoning.

    Attributes:
        begins, ends: their spellings, the usual one first.
        special: whether they are special tokens, which a text has only if asked for.
        begun: whether an answer begins with reasoning even where the first mark is missing.
        messages: an answer is made of messages.
        around: special tokens before and behind the answer proper, which are left out.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    special: bool = False
    begun: bool = False
    messages: MessageForm | None = None
    around: tuple[str, ...] = ()


MARKS: dict[str, Marks | None] = {
    "none": None,
    "cohere_command3": Marks(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        special=True,
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "deepseek_r1": Marks(("<think>",), ("</think>",), begun=True),
    "gemma4": Marks(("<|channel>thought\n",), ("<channel|>",), special=True),
    "granite": Marks(  # quantised models write the second ones
        ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
    ),
    "mistral": Marks(("[THINK]",), ("[/THINK]",), special=True),
    "muse_glimmer": Marks((f" to=self{MESSAGE}",), ("<|eom|>",), special=True, messages=ATEM),
    "openai_gptoss": Marks(("<|channel|>",), ("<|end|>",), special=True, messages=HARMONY),
    "qwen3": Marks(("<think>",), ("</think>",)),
    "seed_oss": Marks(("<seed:think>",), ("</seed:think>",)),
}
assert {*MARKS, "auto"} == {*get_args(ReasoningParser)}


def marks_of(parser: ReasoningParser, template: str | None) -> Marks | None:
    """Return the marks around a model's reasoning; with `auto` those that its chat template has, if any."""
    if parser != "auto":
        return MARKS[parser]
    # Not every model whose template has the marks reasons.
    known = [marks for marks in MARKS.values() if marks is not None and not marks.begun]
    # A template may write the line end of a mark as an escape.
    return next((marks for marks in known if marks.begins[0].rstrip() in (template or "")), None)


def thoughts_reader(marks: Marks, prompt: str, tokenizer: Tokenizer) -> "ReasoningReader | MessageReader":
    """Return what splits one answer; see `ReasoningReader`."""
    if marks.messages is not None:
        return MessageReader(marks.messages, tokenizer)
    return ReasoningReader(marks, prompt, tokenizer)


def reasoning_grammar(marks: Marks, prompt: str, tokenizer: Tokenizer, *, headed: bool = False) -> str | None:
    """Return Lark rules, of which `prefix` is the reasoning that may stand before an answer of a certain form.

    None if there is none behind this prompt.

    Args:
        marks: around reasoning.
        prompt: of the answer.
        tokenizer: of the model.
        headed: whether the form has the headers of messages, where the model writes such.
    """

    def mark(text: str) -> str:
        token = special_token(tokenizer, text)
        if token is None and (head := special_token(tokenizer, text[: text.find(">") + 1])):
            return f"{head} {literal(text[text.find('>') + 1 :])}"  # a token with text behind it
        return token or literal(text)

    if marks.messages is not None:
        return thoughts_before(marks.messages, mark, headed=headed)
    before = prompt.rstrip()
    if before.endswith(marks.ends):
        return None
    opened, needed = before.endswith(marks.begins), marks.begun or before.endswith(marks.begins)
    opening = "" if opened else f"(SPACE ({' | '.join(map(mark, marks.begins))}))" + ("?" if marks.begun else "")
    rules = ["prefix: thoughts" + ("" if needed else "?"), r"SPACE: /[ \n]{0,3}/"]
    ends = [f"end_{i}" for i in range(len(marks.ends))]
    rules.append(f"thoughts: {opening} ({' | '.join(ends)}) SPACE")
    for name, end in zip(ends, marks.ends, strict=True):
        token = special_token(tokenizer, end)
        rules.append(f"{name}: /(?s:.*)/ {token}" if token else f"{name}[suffix={literal(end)}]: /(?s:.*)/")
    return "\n".join(rules)


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
        if before.endswith(marks.begins):
            self._state = "reasoning"
        elif marks.begun and before.endswith(marks.ends):
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
            opened = next((mark for mark in self._marks.begins if begun.startswith(mark)), None)
            if opened is not None:
                self._state, self._text = "reasoning", begun.removeprefix(opened)
            elif not finished and any(mark.startswith(begun) for mark in self._marks.begins):
                return "", ""
            elif self._marks.begun:
                self._state = "reasoning"
            else:
                self._state, self._tokens = "answer", []
        if self._state == "reasoning":
            cuts = [self._text.partition(mark) for mark in self._marks.ends]
            reasoning, mark, rest = min(cuts, key=lambda cut: len(cut[0]))
            if mark:
                del self._tokens[self._end() :]
                self._state, self._text = "answer", rest.lstrip()
                self._leading = not self._text
                return reasoning, self._take(finished)
            partial = 0 if finished else max(overlap(reasoning, mark) for mark in self._marks.ends)
            reasoning, self._text = reasoning[: len(reasoning) - partial], reasoning[len(reasoning) - partial :]
            return reasoning, ""
        return reasoning, self._take(finished)

    def _end(self) -> int:
        """Return how many of the tokens there are up to the one that completes the last mark."""
        tokens, longest = self._tokens, max(map(len, self._marks.ends))
        for begin in range(0, len(tokens), _STRIDE):
            window = tokens[max(0, begin - longest) : begin + _STRIDE]  # a token has a character at least
            if self._has(window):
                low, high = 1, len(window)
                while low < high:  # the fewest tokens that have the mark
                    middle = (low + high) // 2
                    low, high = (low, middle) if self._has(window[:middle]) else (middle + 1, high)
                return max(0, begin - longest) + low
        return len(tokens)

    def _has(self, tokens: list[int]) -> bool:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return any(mark in text for mark in self._marks.ends)

    _leading = False  # whether line ends between reasoning and answer may still come

    def _take(self, finished: bool) -> str:
        text = self._text.lstrip() if self._leading else self._text
        for mark in self._marks.around:
            text = text.replace(mark, "")
        held = 0 if finished else max((overlap(text, mark) for mark in self._marks.around), default=0)
        text, self._text = text[: len(text) - held], text[len(text) - held :]
        self._leading = self._leading and not text
        return text
