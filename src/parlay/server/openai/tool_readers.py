"""Calls in an answer while it grows, whether they are forced or the model's choice."""

from typing import Any
from uuid import uuid4

from parlay.server.openai.custom_tools import input_of
from parlay.server.openai.tool_formats import FORCED, ToolFormat
from parlay.server.openai.tool_scanner import Scanner
from parlay.server.openai.tools import Tools

Call = dict[str, Any]
Piece = str | Call  # text, or (a part of) a call in the form of chunks


class CallReader:
    """Finds calls in an answer while it grows."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.called = 0
        self._input: list[str] | None = None  # the arguments so far of a custom tool's call

    def feed(self, text: str, finished: bool) -> list[Piece]:
        """Return what the next piece of the answer adds, in order.

        All that is new of one call is one part. The input of a custom tool is known at the end of its call.
        """
        pieces = self._feed(text, finished)
        return self._with_inputs(pieces, finished) if self.tools.custom else pieces

    def _feed(self, text: str, finished: bool) -> list[Piece]:
        """Return the same with functions in place of custom tools."""
        raise NotImplementedError

    def _with_inputs(self, pieces: list[Piece], finished: bool) -> list[Piece]:
        shaped: list[Piece] = []
        begun: Call | None = None  # the call of a custom tool that began among these pieces

        def end() -> None:
            nonlocal begun
            if self._input is not None:
                text, self._input = input_of("".join(self._input)), None
                if begun is not None:
                    begun["custom"]["input"] = text
                else:
                    shaped.append({"index": self._number, "custom": {"input": text}})
            begun = None

        for piece in pieces:
            if isinstance(piece, dict) and "id" not in piece and self._input is not None:
                self._input.append(piece["function"]["arguments"])
                continue
            end()
            if isinstance(piece, dict) and piece["function"].get("name") in self.tools.custom:
                function, self._number = piece.pop("function"), piece["index"]
                self._input = [function["arguments"]]
                begun = piece = {**piece, "type": "custom", "custom": {"name": function["name"], "input": ""}}
            shaped.append(piece)
        if finished:
            end()
        return shaped

    def _call(self, name: str, arguments: str) -> Call:
        self.called += 1
        function = {"name": name, "arguments": arguments}
        return {"index": self.called - 1, "id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}

    def _more(self, arguments: str) -> Call:
        return {"index": self.called - 1, "function": {"arguments": arguments}}


class NamedReader(CallReader):
    """The answer is the arguments of the one function."""

    def _feed(self, text: str, finished: bool) -> list[Piece]:
        """Pass the arguments on as they come."""
        if not self.called:
            return [self._call(self.tools.named, text)]
        return [self._more(text)] if text else []


class FreeReader(CallReader):
    """The answer is text, and calls where there are some; a possible call is held back."""

    def __init__(self, tools: Tools, form: ToolFormat, *, alone: bool = False) -> None:
        """Start with nothing shown.

        Args:
            tools: what may be called.
            form: how calls are written.
            alone: whether an answer is either calls or none at all.
        """
        super().__init__(tools)
        self._alone = alone
        self._begun = 0  # calls, shown or not
        self._answer = Scanner(tools.parameters)
        self._search = form.search(self._answer, tools.parameters, alone=alone)

    def _feed(self, text: str, finished: bool) -> list[Piece]:
        """Give text up to where a call may begin, and calls as they grow."""
        self._answer.feed(text, finished)
        next(self._search, None)
        pieces: list[Piece] = []
        for kind, new in self._answer.take():
            self._begun += kind == "name"
            if self._begun > 1 and not self.tools.several:  # one call is wanted: what follows is left out
                continue
            if kind == "text" and self._alone and self._begun:  # between calls, or one that was cut off
                continue
            last = pieces[-1] if pieces else None
            if kind == "name":
                pieces.append(self._call(new, ""))
            elif kind == "text":
                pieces[-1:] = [last + new] if isinstance(last, str) else [*pieces[-1:], new]
            elif isinstance(last, dict):
                last["function"]["arguments"] += new
            else:
                pieces.append(self._more(new))
        return pieces


class ForcedReader(FreeReader):
    """The answer is a list of calls and nothing else: what is around them is not shown."""

    def __init__(self, tools: Tools) -> None:
        """Start with nothing shown."""
        super().__init__(tools, FORCED)

    def _feed(self, text: str, finished: bool) -> list[Piece]:
        """Give calls as they grow; one that is cut off before its name is given if there is only one function."""
        pieces = super()._feed(text, finished)
        if self.called:
            return [piece for piece in pieces if isinstance(piece, dict)]
        if finished and len(self.tools.parameters) == 1:
            (name,) = self.tools.parameters
            return [self._call(name, "")]
        return pieces


def reader_of(tools: Tools, form: ToolFormat, *, alone: bool = False) -> CallReader | None:
    """Return the reader of calls in one answer; None if there can be none. See `FreeReader`."""
    if tools.mode == "none":
        return None
    if tools.mode == "auto" or form.forced:
        return FreeReader(tools, form, alone=alone)
    return NamedReader(tools) if tools.mode == "named" else ForcedReader(tools)
