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
        blocks: the closed blocks.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.blocks: list[Block] = []
        self._open: Block | None = None  # without its text
        self._parts: list[str] = []  # its text

    @property
    def called(self) -> bool:
        """Whether a tool is used."""
        used = self.blocks if self._open is None else [*self.blocks, self._open]
        return any(block["type"] == "tool_use" for block in used)

    @property
    def cut(self) -> bool:
        """Whether the call that is open is no whole one."""
        text = "".join(self._parts)
        return self._open is not None and self._open["type"] == "tool_use" and _object(text) is None

    def write(self, text: str, kind: str = "text") -> list[Event]:
        """Add text to the answer, or to the thoughts before it."""
        if not text:
            return []
        before, field, delta = _TEXTS[kind]
        events = (
            [] if self._open is not None and self._open["type"] == kind else self._begin({"type": kind, **before})
        )
        self._parts.append(text)
        return [*events, self._delta({"type": delta, field: text})]

    def call(self, call: dict[str, Any]) -> list[Event]:
        """Start a call, or add to the one that is open; in the form that chat's chunks have.

        Clients fail on arguments that are no JSON, which some models write. So these are sent when they are whole.
        """
        function, events = call["function"], []
        if "id" in call:
            events = self._begin({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
        self._parts.append(function.get("arguments") or "")
        return events

    def close(self) -> list[Event]:
        """End the block that is open, if one is."""
        if self._open is None:
            return []
        block, text, events = self._open, "".join(self._parts), []
        if block["type"] == "tool_use":
            found = _object(text)
            if found is None:
                found = {"arguments": text}
                text = json.dumps(found, ensure_ascii=False)
            block = {**block, "input": found}
            events = [self._delta({"type": "input_json_delta", "partial_json": text})] if text else []
        else:
            block = {**block, _TEXTS[block["type"]][1]: text}
            if "signature" in block:  # clients take thoughts without one for no part of the conversation
                events = [self._delta({"type": "signature_delta", "signature": ""})]
        events.append({"type": "content_block_stop", "index": len(self.blocks)})
        self.blocks.append(block)
        self._open, self._parts = None, []
        return events

    def _begin(self, block: Block) -> list[Event]:
        events = self.close()
        self._open = block
        return [*events, {"type": "content_block_start", "index": len(self.blocks), "content_block": block}]

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks), "delta": delta}


def _object(text: str) -> dict[str, Any] | None:
    """Return a call's arguments; None if they are no object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
