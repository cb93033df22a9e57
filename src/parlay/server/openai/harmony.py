"""Answers in gpt-oss's harmony format: messages on channels, of which each is reasoning, a call or text.

    <|channel|>analysis<|message|>REASONING<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

The prompt ends with `<|start|>assistant`, and the recipient may also stand before the channel. Commentary without one
is text for the user.

Source: OpenAI 2025, "OpenAI harmony response format".
"""

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from parlay.server.openai.tool_grammars import Mark
from parlay.server.openai.tool_scanner import overlap

RECIPIENT = " to=functions."
CALL = f"<|start|>assistant{RECIPIENT}"  # begins a call in what is handed on; its name and its message follow
MESSAGE = "<|message|>"
_START = "<|start|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_CALLED = re.compile(r"to=functions\.([\w-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
# How headers begin, without spaces.
_HEADS = tuple(
    start + role + mark
    for start in ("", _START)
    for role in ("", "assistant")
    for mark in ("<|channel|>", "<|constrain|>", "to=", MESSAGE)
)
_LONGEST = 256  # characters of a header


def final(mark: Mark) -> str:
    """Return what stands before an answer of a certain form, as a grammar has it."""
    channel, constrain, message = map(mark, ("<|channel|>", "<|constrain|>", MESSAGE))
    return f'{channel} "final" [[" "] {constrain} ("json" | "JSON")] {message}'


def analysis(mark: Mark, *, headed: bool) -> str:
    """Return the rules of what stands before an answer's form: reasoning, and the answer's header unless it is there.

    Args:
        mark: of special tokens.
        headed: whether the form has the headers of its messages.
    """
    channel, message, end, start = map(mark, ("<|channel|>", MESSAGE, "<|end|>", _START))
    rules = ["prefix: thought*" + ("" if headed else " final"), "TEXT: /(?s:.*)/"]
    rules.append(f'thought: {channel} "analysis" {message} TEXT {end} {start} "assistant"')
    return "\n".join([*rules, *([] if headed else [f"final: {final(mark)}"])])


class HarmonyReader:
    """Splits an answer while it grows, as `ReasoningReader` does; calls are handed on behind `CALL`.

    What is no message is text, so that a damaged answer loses nothing; a header that was cut off is left out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Begin behind a prompt that has begun a message."""
        self._text = ""
        self._place = "header"  # or what the message is: "reasoning", "text" or "call"
        self._given = set[str]()  # places that something was given of
        self._tokenizer = tokenizer
        self._marks = {tokenizer.token_to_id(mark): mark for mark in (MESSAGE, *_ENDS)}
        self._counted = self._open = 0  # tokens of whole messages of reasoning, and of the message that is open
        self._header: list[int] | None = []  # tokens of its header so far; None behind it
        self._thinks = False

    @property
    def tokens(self) -> int:
        """Of reasoning so far, with its marks; the same however the answer is cut into pieces."""
        return self._counted + (self._open if self._thinks else 0)

    def feed(self, text: str, finished: bool, tokens: Sequence[int] = ()) -> tuple[str, str]:
        """Return what the next piece adds to the reasoning and to the answer proper, calls included.

        Args:
            text: the piece.
            finished: whether it is the last one.
            tokens: that it has.
        """
        for token in tokens:
            self._count(token)
        self._text += text
        reasoning = answer = ""
        while self._text:
            found = self._read_header(finished) if self._place == "header" else self._read_message(finished)
            if found is None:
                break
            place, new = found
            if place == "reasoning":
                reasoning += new
            else:
                answer += new
        return reasoning, answer

    def _read_header(self, finished: bool) -> tuple[str, str] | None:
        """Take a header; return what kind of message follows, and what is given for it; None to wait."""
        places = [(at, end) for end in (MESSAGE, *_ENDS[:-1]) if (at := self._text.find(end)) >= 0]
        place, mark = min(places, default=(len(self._text), ""))
        header, rest = self._text[:place], self._text[place + len(mark) :]
        if mark and mark != MESSAGE:  # a message without any text
            self._text = rest
            return "text", ""
        squeezed = "".join((header + mark).split())
        fits = len(header) <= _LONGEST and any(h.startswith(squeezed) or squeezed.startswith(h) for h in _HEADS)
        if fits and not mark:
            if finished:
                self._text = ""
            return None
        if not fits:  # no message, but text
            self._place = "text"
            return "text", ""
        self._text = rest
        if called := _CALLED.search(header):
            self._place = "call"
            return "call", f"{CALL}{called[1]}{MESSAGE}"
        self._place = "reasoning" if _thinks(header) else "text"
        return self._place, "\n" if self._place in self._given else ""

    def _read_message(self, finished: bool) -> tuple[str, str] | None:
        """Take what there is of a message; return its kind and what is new; None to wait."""
        place, text = self._place, self._text
        ends = [(at, mark) for mark in _ENDS if (at := text.find(mark)) >= 0]
        if ends:
            at, mark = min(ends)
            new, self._text, self._place = text[:at], text[at + len(mark) :], "header"
        else:
            held = 0 if finished else max(overlap(text, mark) for mark in _ENDS)
            new, self._text = text[: len(text) - held], text[len(text) - held :]
            if not new:
                return None
        if new:
            self._given.add(place)
        return place, new

    def _count(self, token: int) -> None:
        mark = self._marks.get(token)
        self._open += 1
        if self._header is None:
            if mark is not None and mark != MESSAGE:
                self._counted += self._open if self._thinks else 0
                self._open, self._header, self._thinks = 0, [], False
        elif mark in _ENDS[:-1]:
            self._open, self._header = 0, []
        elif mark == MESSAGE:
            header = self._tokenizer.decode(self._header, skip_special_tokens=False)
            self._header, self._thinks = None, _thinks(header) and not _CALLED.search(header)
        else:
            self._header.append(token)


def _thinks(header: str) -> bool:
    """Whether a message is on the channel of reasoning; the last one counts."""
    return _CHANNEL.findall(header)[-1:] == ["analysis"]
