"""Calls in an answer while it grows, whether they are forced or of the model's own will."""

import json
import re
from typing import Any
from uuid import uuid4

from parlay.server.tool_formats import ToolFormat
from parlay.server.tools import Tools

# What a call begins with, as far as it was written; the grammar of forced calls has the name first.
_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')

Call = dict[str, Any]


class Reader:
    """Finds calls in an answer while it grows."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.text = ""
        self.called = 0

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Return what the next piece of the answer adds: plain text, and (parts of) calls in the form of chunks."""
        raise NotImplementedError

    def _call(self, name: str, arguments: str) -> Call:
        self.called += 1
        function = {"name": name, "arguments": arguments}
        return {"index": self.called - 1, "id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


class NamedReader(Reader):
    """The answer is the arguments of the one function."""

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Pass the arguments on as they come."""
        if not self.called:
            return "", [self._call(self.tools.named, text)]
        return "", [{"index": 0, "function": {"arguments": text}}] if text else []


class ListReader(Reader):
    """The answer is a list of calls; each is given once it is complete, the last one also where it was cut off."""

    _at = 0

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Give calls; an answer that was cut off within the name of the first is plain text."""
        self.text += text
        calls = []
        while "}" in text or finished:
            start = re.compile(r"[\s,\[]*").match(self.text, self._at)
            assert start is not None
            try:
                value, self._at = json.JSONDecoder().raw_decode(self.text, start.end())
            except (ValueError, RecursionError):
                head = _HEAD.match(self.text, start.end()) if finished else None
                if head is not None:
                    calls.append(self._call(json.loads(head[1]), self.text[head.end() :]))
                break
            calls.append(self._call(value["name"], json.dumps(value["arguments"], ensure_ascii=False)))
        return (self.text if finished and not self.called else ""), calls


class FreeReader(Reader):
    """The answer is text, and calls where the model makes some; what may become one is held back."""

    def __init__(self, tools: Tools, form: ToolFormat) -> None:
        """Begin with nothing shown.

        Args:
            tools: what may be called.
            form: how the model writes calls.
        """
        super().__init__(tools)
        self._form = form
        self._shown = 0

    def feed(self, text: str, finished: bool) -> tuple[str, list[Call]]:
        """Give text up to where a call may begin; at the end, calls."""
        self.text += text
        if finished:
            content, values = self._form.find(self.text, self.tools.parameters)
            if not values:
                return self.text[self._shown :], []
            return content[self._shown :], [self._call(name, arguments) for name, arguments in values]
        end = self._form.plain_end(self.text)
        new, self._shown = self.text[self._shown : end], max(self._shown, end)
        return new, []


def reader_of(tools: Tools, form: ToolFormat) -> Reader | None:
    """Return what finds the calls in one answer; None if none can be there."""
    if tools.mode == "auto":
        return FreeReader(tools, form)
    forced = {"required": ListReader, "named": NamedReader}
    return forced[tools.mode](tools) if tools.mode in forced else None
