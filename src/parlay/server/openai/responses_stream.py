"""The output of a response while it grows: its items, and the events that tell of them."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from parlay.server.openai.responses_tools import Origin

Event = dict[str, Any]
Item = dict[str, Any]

# The part of an item that has its text, what else stands in it, and how events about it begin.
_PARTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "message": ("output_text", {"annotations": [], "logprobs": []}, "response.output_text"),
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
        items: those that are closed.
    """

    def __init__(self, origins: Mapping[str, Origin] | None = None) -> None:
        """Begin empty; `origins` are of the tools in namespaces."""
        self.items: list[Item] = []
        self._origins = origins or {}
        self._open: Item | None = None  # without its text
        self._parts: list[str] = []  # its text

    def write(self, text: str, kind: str = "message") -> list[Event]:
        """Add text to the answer, or to the reasoning before it."""
        if not text:
            return []
        events = []
        if self._open is None or self._open["type"] != kind:
            events = self._begin(kind, {"role": "assistant"} if kind == "message" else {"summary": []})
        _, _, about = _PARTS[kind]
        self._parts.append(text)
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [*events, {"type": f"{about}.delta", **self._at, "content_index": 0, "delta": text, **more}]

    def call(self, call: dict[str, Any]) -> list[Event]:
        """Begin a call, or add to the one that is open; in the form that chat's chunks have."""
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
        """Take an item that is complete."""
        kind = item["type"]
        where = "content" if kind in _PARTS else _CALLS[kind][0]
        more = {key: value for key, value in item.items() if key not in ("id", "type", "status", where)}
        events = self._begin(kind, more, item["id"])
        text = item[where][0]["text"] if kind in _PARTS else item[where]
        events += self.write(text, kind) if kind in _PARTS else self._grow(text)
        return [*events, *self.close(item["status"])]

    def close(self, status: str = "completed") -> list[Event]:
        """End the item that is open, if one is."""
        if self._open is None:
            return []
        text, kind = self._text, self._open["type"]
        if kind in _PARTS:
            part, more, about = _PARTS[kind]
            content = {"content_index": 0}
            extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            events: list[Event] = [
                {"type": f"{about}.done", **self._at, **content, "text": text, **extra},
                {
                    "type": "response.content_part.done",
                    **self._at,
                    **content,
                    "part": {"type": part, "text": text, **more},
                },
            ]
        else:
            name, about = _CALLS[kind]
            events = [{"type": f"{about}.done", **self._at, name: text, "name": self._open["name"]}]
        item = self._shown(status)
        events.append({"type": "response.output_item.done", "output_index": len(self.items), "item": item})
        self.items.append(item)
        self._open, self._parts = None, []
        return events

    def end(self, status: str = "completed") -> list[Event]:
        """End everything; an answer without any item is an empty message."""
        if self._open is None and not self.items:
            return [*self._begin("message", {"role": "assistant"}), *self.close(status)]
        return self.close(status)

    @property
    def _text(self) -> str:
        return "".join(self._parts)

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
            part, with_it, _ = _PARTS[kind]
            begun = {"type": part, "text": "", **with_it}
            events.append({"type": "response.content_part.added", **self._at, "content_index": 0, "part": begun})
        return events

    def _shown(self, status: str) -> Item:
        assert self._open is not None
        shown = {**self._open, "status": status}
        if self._open["type"] not in _PARTS:
            return {**shown, _CALLS[self._open["type"]][0]: self._text}
        part, more, _ = _PARTS[self._open["type"]]
        return {**shown, "content": [{"type": part, "text": self._text, **more}]}
