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
from parlay.server.openai.tags import DEEPSEEK_4, DEEPSEEK_32, DEEPSEEK_41, KIMI_3, MINIMAX_3, until
from parlay.server.openai.tool_formats import ToolFormat
from parlay.server.openai.tool_grammars import SpelledMarks
from parlay.server.openai.tool_readers import FreeReader
from parlay.server.openai.tool_scanner import overlap
from parlay.server.openai.tools import Tools


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around reasoning.

    Attributes:
        begins, ends: spellings of the first and of the last mark, the usual one first.
        special: whether they are special tokens, which a text has only if asked for.
        begun: whether an answer begins with reasoning even where the first mark is missing.
        messages: an answer is made of messages.
        around: special tokens, with the texts that name them, around parts of the answer proper, which are left out.
        within: what may stand around the answer proper as text, at its very beginning and end, and is left out.
        called: marks of calls, which end reasoning that has no other end, and belong to the answer.
        sign: text by which a template that has these marks is recognised; by default the first mark.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    special: bool = False
    begun: bool = False
    messages: MessageForm | None = None
    around: tuple[str, ...] = ()
    within: tuple[str, str] = ("", "")
    called: tuple[str, ...] = ()
    sign: str = ""


_DSML = tuple(one.begin for one in (DEEPSEEK_32, DEEPSEEK_4, DEEPSEEK_41))
Calls = tuple[Tools, ToolFormat]  # what may be called, and how calls are written
MARKS: dict[str, Marks | None] = {
    "none": None,
    # Thoughts go on behind calls and their results, so that a call comes before their end.
    "apertus": Marks(("<|inner_prefix|>",), ("<|inner_suffix|>",), special=True, called=("<|tools_prefix|>",)),
    "apriel": Marks(
        ("Here are my reasoning steps:",),
        ("[BEGIN FINAL RESPONSE]",),
        within=("", "[END FINAL RESPONSE]"),
        sign="[BEGIN FINAL RESPONSE]",
    ),
    "cohere_command3": Marks(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        special=True,
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "deepseek_r1": Marks(("<think>",), ("</think>",), begun=True),
    "deepseek_v4": Marks(("<think>",), ("</think>",), called=_DSML, sign="\uff5cDSML\uff5c"),
    "gemma4": Marks(("<|channel>thought\n",), ("<channel|>",), special=True),
    "granite": Marks(  # quantised models write the second ones
        ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
    ),
    "granite33": Marks(
        ("<think>",),
        ("</think>",),
        within=("<response>", "</response>"),
        sign="your response between <response></response>",
    ),
    "hy_v3": Marks(("<think:opensource>", "<think>"), ("</think:opensource>", "</think>"), sign="<think{}>"),
    "kimi_k3": Marks(
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        special=True,
        around=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        called=(KIMI_3.begin,),
        sign="<|end_of_msg|>",
    ),
    "minimax_m3": Marks(("<mm:think>",), ("</mm:think>",), called=(MINIMAX_3.begin,)),
    "mistral": Marks(("[THINK]",), ("[/THINK]",), special=True),
    "muse_glimmer": Marks((f" to=self{MESSAGE}",), ("<|eom|>",), special=True, messages=ATEM),
    "openai_gptoss": Marks(("<|channel|>",), ("<|end|>",), special=True, messages=HARMONY),
    "qwen3": Marks(("<think>",), ("</think>",)),
    "seed_oss": Marks(("<seed:think>",), ("</seed:think>",)),
    "solar_open": Marks(
        ("<|think|>",),
        ("<|end|>",),
        special=True,
        around=("<|begin|>assistant", "<|content|>", "<|end|>"),
        sign="<|begin|>assistant<|think|>",
    ),
}
# Further names in vLLM, of models that write `<think>`, or whose prompt does.
_ALIASES = dict.fromkeys(
    ("deepseek_v3", "glm45", "glm47", "kimi_k2", "mimo", "minimax_m2", "nemotron_v3", "olmo3", "poolside_v1"), "qwen3"
) | {"deepseek_v41": "deepseek_v4"}
assert {*MARKS, *_ALIASES, "auto"} == {*get_args(ReasoningParser)}


def marks_of(parser: ReasoningParser, template: str | None) -> Marks | None:
    """Return the marks around a model's reasoning; with `auto` those that its chat template has, if any."""
    if parser != "auto":
        return MARKS[_ALIASES.get(parser, parser)]
    # Not every model whose template has the marks reasons.
    known = [marks for marks in MARKS.values() if marks is not None and not marks.begun]
    # A template may write the line end of a mark as an escape.
    return next((marks for marks in known if (marks.sign or marks.begins[0].rstrip()) in (template or "")), None)


def thoughts_reader(
    marks: Marks, prompt: str, tokenizer: Tokenizer, calls: Calls | None = None
) -> "ReasoningReader | MessageReader":
    """Return what splits one answer; see `ReasoningReader`."""
    if marks.messages is not None:
        return MessageReader(marks.messages, tokenizer)
    return ReasoningReader(marks, prompt, tokenizer, calls)


def reasoning_grammar(marks: Marks, prompt: str, tokenizer: Tokenizer, *, headed: bool = False) -> str | None:
    """Return Lark rules, of which `prefix` is the reasoning that may stand before an answer of a certain form.

    None if there is none behind this prompt.

    Args:
        marks: the marks around reasoning.
        prompt: the answer's prompt.
        tokenizer: the model's tokenizer.
        headed: whether the form has the headers of messages, where the model writes such.
    """

    mark = SpelledMarks(tokenizer)
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
        rules += until(name, end, mark)
    return "\n".join(rules)


_STRIDE = 256  # tokens that are searched for the last mark at once


class ReasoningReader:
    """Splits an answer while it grows.

    Calls at the end of an answer whose reasoning has no end belong to the answer proper: models forget the mark
    (vllm-project/vllm#45915). They are held back until then, since a model may as well go on thinking.

    Attributes:
        tokens: tokens of the reasoning so far, its marks included; those of an answer's beginning that may yet become
            a mark are not among them.
    """

    def __init__(self, marks: Marks, prompt: str, tokenizer: Tokenizer, calls: Calls | None = None) -> None:
        """Start with an empty answer.

        Args:
            marks: the marks around reasoning.
            prompt: the answer's prompt; where it ends with the first mark, the answer begins with reasoning, and with
                the last one it has none.
            tokenizer: the tokenizer of the answer's tokens.
            calls: the calls that an answer may have, if it may have any.
        """
        self._calls, self._begins = calls, calls[1].marks if calls is not None else ()
        self._marks, self._stops = marks, (*marks.ends, *marks.called)
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
            tokens: the piece's tokens.
        """
        reasoning = ""
        self._text += text
        if self._state != "answer":
            self._tokens += tokens
        if self._state == "undecided" and not self._decide(finished):
            return "", ""
        if self._state == "reasoning":
            reasoning = self._think(finished)
            if self._state == "reasoning":
                return reasoning, ""
        return reasoning, self._take(finished)

    _draft: FreeReader | None = None  # reads what may be calls, with which the text begins
    _read = 0  # characters of the text that it has got

    def _think(self, finished: bool) -> str:
        """Return what is new of the reasoning; find out whether it ends."""
        given = ""
        while True:
            if self._draft is None:
                found = [(at, mark) for mark in (*self._stops, *self._begins) if (at := self._text.find(mark)) >= 0]
                at, mark = min(found, default=(len(self._text), ""))
                if not mark:
                    marks = (*self._stops, *self._begins)
                    at -= 0 if finished else max(overlap(self._text, mark) for mark in marks)
                given, self._text = given + self._text[:at], self._text[at:]
                if not mark:
                    return given
                if mark in self._stops:
                    self._finish(mark)
                    return given
                assert self._calls is not None
                self._draft, self._read = FreeReader(*self._calls), 0
            new, recent = self._text[self._read :], self._text[max(0, self._read - max(map(len, self._stops))) :]
            self._read = len(self._text)
            visible = any(isinstance(one, str) and one.strip() for one in self._draft.feed(new, finished))
            if visible or any(mark in recent for mark in self._stops) or (finished and not self._draft.called):
                self._draft, mark = None, next(one for one in self._begins if self._text.startswith(one))
                given, self._text = given + mark, self._text[len(mark) :]
            elif finished:
                self._state = "answer"
                self._drop()
                return given
            else:
                return given

    def _finish(self, mark: str) -> None:
        """End the reasoning at a mark with which the text begins."""
        del self._tokens[self._end() :]
        called = mark in self._marks.called
        self._state, self._text = "answer", self._text if called else self._text.removeprefix(mark).lstrip()
        self._leading = not self._text
        self._opens = any(self._marks.within)

    def _drop(self) -> None:
        """Keep only the reasoning's tokens: the text behind it is calls."""
        whole = self._tokenizer.decode(self._tokens, skip_special_tokens=False)
        place = whole.rfind(self._text)
        low, high = 0, len(self._tokens)
        while low < high and place >= 0:
            middle = (low + high) // 2
            reached = len(self._tokenizer.decode(self._tokens[:middle], skip_special_tokens=False)) >= place
            low, high = (low, middle) if reached else (middle + 1, high)
        del self._tokens[high:]

    def _decide(self, finished: bool) -> bool:
        """Find out whether an answer begins with reasoning; False to wait."""
        marks, begun = self._marks, self._text.lstrip()
        opened = next((mark for mark in marks.begins if begun.startswith(mark)), None)
        # As MiniMax-M3 begins an answer without reasoning.
        closed = None if marks.begun else next((mark for mark in marks.ends if begun.startswith(mark)), None)
        if opened is not None:
            self._state, self._text = "reasoning", begun.removeprefix(opened)
        elif closed is not None:
            self._state, self._tokens, self._text = "answer", [], begun.removeprefix(closed).lstrip()
            self._leading = not self._text
        elif not finished and any(mark.startswith(begun) for mark in (*marks.begins, *marks.ends)):
            return False
        elif marks.begun:
            self._state = "reasoning"
        else:
            self._state, self._tokens = "answer", []
        return True

    def _end(self) -> int:
        """Return how many of the tokens there are up to the one that completes the last mark."""
        tokens, longest = self._tokens, max(map(len, self._stops))
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
        return any(mark in text for mark in self._stops)

    _leading = False  # whether line ends between reasoning and answer may still come
    _opens = False  # whether the text that may stand before the answer proper may
    _closes = False  # whether the one behind it may

    def _take(self, finished: bool) -> str:
        text = self._text.lstrip() if self._leading else self._text
        opening, closing = self._marks.within
        if self._opens and text.startswith(opening):
            self._opens, self._closes, text = False, True, text.removeprefix(opening)
        elif self._opens and not finished and opening.startswith(text):
            return ""
        self._opens = False
        for mark in self._marks.around:
            text = text.replace(mark, "")
        held = 0 if finished else max((overlap(text, mark) for mark in self._marks.around), default=0)
        if self._closes:
            solid = text.rstrip()
            closed = solid.endswith(closing)
            solid = (solid.removesuffix(closing) if closed else text[: len(text) - overlap(text, closing)]).rstrip()
            text, held = (solid, 0) if closed and finished else (text, 0 if finished else len(text) - len(solid))
        text, self._text = text[: len(text) - held], text[len(text) - held :]
        self._leading = self._leading and not text
        return text
