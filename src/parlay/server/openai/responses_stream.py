"""The output of a response while it grows: its items, and the events that tell of them."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from parlay.server.openai.responses_tools import Origin

Event = dict[str, Any]
Item = dict[str, Any]

# The part of an item that has its text, what else stands in it, and how events about it begin.
_PARTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "message": ("output_text", {"annotations": []}, "response.output_text"),
    "reasoning": ("reasoning_text", {}, "response.reasoning_text"),
}
# What calls have in place of text, and how events about it begin.
_CALLS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}


class ResponseOutput:
    """One item after another, each closed before the next begins.

    Attributes:
        items: the closed items.
    """

    def __init__(self, origins: Mapping[str, Origin] | None = None) -> None:
        """Start empty; `origins` are of the tools in namespaces."""
        self.items: list[Item] = []
        self._origins = origins or {}
        self._open: Item | None = None  # without its text
        self._parts: list[str] = []  # its text
        self._logprobs: list[Event] = []  # of a message's tokens

    def write(self, text: str, kind: str = "message", logprobs: Sequence[Event] = ()) -> list[Event]:
        """Add text to the answer, with its tokens' log-probabilities, or to the reasoning before it."""
        if not text:
            return []
        events = []
        if self._open is None or self._open["type"] != kind:
            events = self._begin(kind, {"role": "assistant"} if kind == "message" else {"summary": []})
        _, _, about = _PARTS[kind]
        self._parts.append(text)
        self._logprobs += logprobs
        more: dict[str, Any] = {"logprobs": list(logprobs)} if kind == "message" else {}
        return [*events, {"type": f"{about}.delta", **self._at, "content_index": 0, "delta": text, **more}]

    def call(self, call: dict[str, Any]) -> list[Event]:
        """Start a call, or add to the one that is open; in the form that chat's chunks have."""
        own, events = call.get("custom") or call["function"], []
        if "id" in call:
            origin = self._origins.get(own["name"], Origin(own["name"]))
            space = {"namespace": origin.namespace} if origin.namespace else {}
            kind = "custom_tool_call" if "custom" in call else "function_call"
            events = self._begin(kind, {"call_id": call["id"], "name": origin.name, **space})
        return [*events, *self._grow(own.get("input") or own.get("arguments") or "")]

    def _grow(self, text: str) -> list[Event]:
        """Add to the arguments or the input of the call that is open."""
        if not text or self._open is None:
            return []
        self._parts.append(text)
        return [{"type": f"{_CALLS[self._open['type']][1]}.delta", **self._at, "delta": text}]

    def replay(self, item: Item) -> list[Event]:
        """Add an item that is complete."""
        kind = item["type"]
        where = "content" if kind in _PARTS else _CALLS[kind][0]
        more = {key: value for key, value in item.items() if key not in ("id", "type", "status", where)}
        events = self._begin(kind, more, item["id"])
        if kind in _PARTS:
            part = item[where][0]
            events += self.write(part["text"], kind, part.get("logprobs", ()))
        else:
            events += self._grow(item[where])
        return [*events, *self.close(item["status"])]

    def close(self, status: str = "completed") -> list[Event]:
        """End the item that is open, if one is."""
        if self._open is None:
            return []
        text, kind = self._text, self._open["type"]
        if kind in _PARTS:
            content, scored = {"content_index": 0}, self._scored
            events: list[Event] = [
                {"type": f"{_PARTS[kind][2]}.done", **self._at, **content, "text": text, **scored},
                {"type": "response.content_part.done", **self._at, **content, "part": self._part},
            ]
        else:
            name, about = _CALLS[kind]
            events = [{"type": f"{about}.done", **self._at, name: text, "name": self._open["name"]}]
        item = self._shown(status)
        events.append({"type": "response.output_item.done", "output_index": len(self.items), "item": item})
        self.items.append(item)
        self._open, self._parts, self._logprobs = None, [], []
        return events

    def end(self, status: str = "completed", logprobs: Sequence[Event] = ()) -> list[Event]:
        """End everything; an answer without any item is an empty message.

        `logprobs` are of tokens after the message's text, such as those of a stop string.
        """
        if self._open is not None and self._open["type"] == "message":
            self._logprobs += logprobs
        if self._open is None and not self.items:
            return [*self._begin("message", {"role": "assistant"}), *self.close(status)]
        return self.close(status)

    @property
    def _text(self) -> str:
        return "".join(self._parts)

    @property
    def _scored(self) -> dict[str, Any]:
        assert self._open is not None
        return {"logprobs": list(self._logprobs)} if self._open["type"] == "message" else {}

    @property
    def _part(self) -> dict[str, Any]:
        assert self._open is not None
        part, more, _ = _PARTS[self._open["type"]]
        return {"type": part, "text": self._text, **more, **self._scored}

    @property
    def _at(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self.items)}

    def _begin(self, kind: str, more: dict[str, Any], name: str = "") -> list[Event]:
        events = self.close()
        self._open = {"id": name or f"{_PREFIX[kind]}_{uuid4().hex}", "type": kind, **more}
        item = self._shown("in_progress")
        if kind in _PARTS:
            item["content"] = []
        events.append({"type": "response.output_item.added", "output_index": len(self.items), "item": item})
        if kind in _PARTS:
            about = {"content_index": 0, "part": self._part}
            events.append({"type": "response.content_part.added", **self._at, **about})
        return events

    def _shown(self, status: str) -> Item:
        assert self._open is not None
        shown = {**self._open, "status": status}
        if self._open["type"] not in _PARTS:
            return {**shown, _CALLS[self._open["type"]][0]: self._text}
        return {**shown, "content": [self._part]}
