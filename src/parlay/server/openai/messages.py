"""Answers that are made of messages, each of which has a header that says whether it is reasoning, a call or text."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from parlay.server.openai.tool_grammars import Mark
from parlay.server.openai.tool_scanner import overlap

MESSAGE = "<|message|>"  # behind a header
START = "<|start|>"  # of a header, behind which the role stands; a prompt ends with the answer's
_LONGEST = 256  # characters of a header


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How one family writes messages.

    Attributes:
        ends: marks behind a message, `START` last.
        heads: how headers begin, without spaces.
        thinks: tells whether a header is that of reasoning.
        called: finds the function that a header calls.
        handed: what stands before a call where calls are read; `{}` is the function's name.
        thought: reasoning with its header and the next role, as a grammar has them; `TEXT` is any text.
        final: what stands before an answer of a certain form, as a grammar has it.
    """

    ends: tuple[str, ...]
    heads: tuple[str, ...]
    thinks: Callable[[str], bool]
    called: re.Pattern[str]
    handed: str
    thought: Callable[[Mark], str]
    final: Callable[[Mark], str]


def heads_with(*marks: str) -> tuple[str, ...]:
    """Return how headers begin in which these follow the role, which may be missing."""
    return tuple(start + role + mark for start in ("", START) for role in ("", "assistant") for mark in marks)


def thoughts_before(form: MessageForm, mark: Mark, *, headed: bool) -> str:
    """Return the rules of what stands before an answer's form: reasoning, and the answer's header unless it is there.

    Args:
        form: the messages' format.
        mark: spells a special token for the grammar.
        headed: whether the answer's form has the headers of its messages.
    """
    rules = ["prefix: thought*" + ("" if headed else " final"), "TEXT: /(?s:.*)/", f"thought: {form.thought(mark)}"]
    return "\n".join([*rules, *([] if headed else [f"final: {form.final(mark)}"])])


class MessageReader:
    """Splits an answer while it grows, as `ReasoningReader` does; calls are handed on to what reads calls.

    What is no message is text, so that a damaged answer loses nothing; a header that was cut off is left out.
    """

    def __init__(self, form: MessageForm, tokenizer: Tokenizer) -> None:
        """Start behind a prompt that has begun a message."""
        self._form = form
        self._text = ""
        self._place = "header"  # or what the message is: "reasoning", "text" or "call"
        self._given = set[str]()  # places that something was given of
        self._tokenizer = tokenizer
        self._marks = {tokenizer.token_to_id(mark): mark for mark in (MESSAGE, *form.ends)}
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
            tokens: the piece's tokens.
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
        """Read a header; return what kind of message follows, and what is given for it; None to wait."""
        places = [(at, end) for end in (MESSAGE, *self._form.ends[:-1]) if (at := self._text.find(end)) >= 0]
        place, mark = min(places, default=(len(self._text), ""))
        header, rest = self._text[:place], self._text[place + len(mark) :]
        if mark and mark != MESSAGE:  # a message without any text
            self._text = rest
            return "text", ""
        squeezed = "".join((header + mark).split())
        fits = len(header) <= _LONGEST and any(
            h.startswith(squeezed) or squeezed.startswith(h) for h in self._form.heads
        )
        if fits and not mark:
            if finished:
                self._text = ""
            return None
        if not fits:  # no message, but text
            self._place = "text"
            return "text", ""
        self._text = rest
        if called := self._form.called.search(header):
            self._place = "call"
            return "call", self._form.handed.format(called[1])
        self._place = "reasoning" if self._form.thinks(header) else "text"
        return self._place, "\n" if self._place in self._given else ""

    def _read_message(self, finished: bool) -> tuple[str, str] | None:
        """Read what there is of a message; return its kind and what is new; None to wait."""
        place, text = self._place, self._text
        ends = [(at, mark) for mark in self._form.ends if (at := text.find(mark)) >= 0]
        if ends:
            at, mark = min(ends)
            new, self._text, self._place = text[:at], text[at + len(mark) :], "header"
        else:
            held = 0 if finished else max(overlap(text, mark) for mark in self._form.ends)
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
        elif mark in self._form.ends[:-1]:
            self._open, self._header = 0, []
        elif mark == MESSAGE:
            header = self._tokenizer.decode(self._header, skip_special_tokens=False)
            self._header, self._thinks = None, self._form.thinks(header) and not self._form.called.search(header)
        else:
            self._header.append(token)
