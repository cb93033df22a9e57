"""The content of a message while it grows: its blocks, and the events that tell of them."""

import json
from typing import Any

Block = dict[str, Any]
Event = dict[str, Any]

# What a block has before its text, and in which field of it and of its deltas that stands.
_TEXTS: dict[str, tuple[Block, str, str]] = {
    "text": ({"text": ""}, "text", "text_delta"),
    "thinking": ({"thinking": "", "signature": ""}, "thinking", "thinking_delta"),
}


class Content:
    """One block after another, each closed before the next begins.

    Attributes:
        blocks: those that are closed.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.blocks: list[Block] = []
        self._open: Block | None = None  # without its text
        self._parts: list[str] = []  # its text

    @property
    def called(self) -> bool:
        """Whether a tool is used."""
        used = self.blocks if self._open is None else [*self.blocks, self._open]
        return any(block["type"] == "tool_use" for block in used)

    def write(self, text: str, kind: str = "text") -> list[Event]:
        """Add text to the answer, or to the thoughts before it."""
        if not text:
            return []
        before, field, delta = _TEXTS[kind]
        events = (
            [] if self._open is not None and self._open["type"] == kind else self._begin({"type": kind, **before})
        )
        return [*events, self._delta({"type": delta, field: text}, text)]

    def call(self, call: dict[str, Any]) -> list[Event]:
        """Begin a call, or add to the one that is open; in the form that chat's chunks have."""
        function, events = call["function"], []
        if "id" in call:
            events = self._begin({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
        text = function.get("arguments") or ""
        return [*events, *([self._delta({"type": "input_json_delta", "partial_json": text}, text)] if text else [])]

    def close(self) -> list[Event]:
        """End the block that is open, if one is."""
        if self._open is None:
            return []
        block, text = self._open, "".join(self._parts)
        if block["type"] == "tool_use":
            block = {**block, "input": _object(text)}
        else:
            block = {**block, _TEXTS[block["type"]][1]: text}
        event = {"type": "content_block_stop", "index": len(self.blocks)}
        self.blocks.append(block)
        self._open, self._parts = None, []
        return [event]

    def _begin(self, block: Block) -> list[Event]:
        events = self.close()
        self._open = block
        return [*events, {"type": "content_block_start", "index": len(self.blocks), "content_block": block}]

    def _delta(self, delta: Event, text: str) -> Event:
        self._parts.append(text)
        return {"type": "content_block_delta", "index": len(self.blocks), "delta": delta}


def _object(text: str) -> dict[str, Any]:
    """Return a call's arguments, which some models write wrongly, as the object that clients expect."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"arguments": found}
