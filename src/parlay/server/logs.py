"""The server's log: a line of JSON for each event, or a line for people."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from parlay.errors import visible
from parlay.types.stats import StatsSnapshot

Log = Callable[[dict[str, Any]], None]  # takes the facts of one event


def log_line(facts: dict[str, Any]) -> None:
    """Write one line of JSON to stderr."""
    sys.stderr.write(json_of(facts) + "\n")


def log_text(facts: dict[str, Any]) -> None:
    """Write one line for people to stderr."""
    sys.stderr.write(text_of(facts) + "\n")


def json_of(facts: dict[str, Any]) -> str:
    """Return a line of JSON in which even what JSON allows is escaped if a terminal would obey it, such as U+009B."""
    text = msgspec.json.encode(facts).decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def text_of(facts: dict[str, Any]) -> str:
    """Return a line that says what happened, the most important first; clients' control characters are escaped."""
    return visible(_line(facts))


def _line(facts: dict[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(facts.get("time")))
    if "event" in facts:
        rest = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items() if key not in _HEAD)
        return f"{at} {facts['event']}: {rest}"
    parts = [at, str(facts.get("status")), str(facts.get("method"))]
    parts.append(str(facts.get("path")).replace(" ", "%20"))  # a path is one column
    parts.append(f"{facts.get('seconds', 0):.2f} s")
    if facts.get("completion_tokens"):
        parts.append(f"{facts['prompt_tokens']} + {facts['completion_tokens']} tokens")
    for name in ("error", "warnings", "log"):
        if facts.get(name):
            value = facts[name]
            parts.append("; ".join(map(str, value)) if isinstance(value, list) else str(value))
    return "  ".join(parts)


_HEAD = ("time", "event")


class Speed:
    """An engine's speed between two reads of its counters."""

    def __init__(self, stats: Callable[[], StatsSnapshot]) -> None:
        """Start with the counters as they are."""
        self._stats = stats
        self._before, self._then = stats(), time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """Return the figures since the last read; None where nothing was done, or the engine was restarted."""
        before, now, then = self._before, self._stats(), self._then
        self._before, self._then = now, time.monotonic()
        emitted, prompt = now.emitted - before.emitted, now.prefilled - before.prefilled
        steps = now.steps - before.steps
        if steps <= 0 or emitted < 0:
            return None
        seconds = self._then - then
        drafted = now.draft_stats.drafted - before.draft_stats.drafted
        accepted = now.draft_stats.accepted - before.draft_stats.accepted
        return {
            "event": "speed",
            "tokens_per_second": round(emitted / seconds, 1),
            "prompt_tokens_per_second": round(prompt / seconds, 1),
            "tokens_per_step": round(emitted / steps, 2),
            "draft_tokens_accepted": f"{accepted} of {drafted}",
            "running": now.running,
            "waiting": now.waiting,
            "cache_used": f"{now.blocks_used / max(now.blocks, 1):.0%}",
        }


async def report_speed(stats: Callable[[], StatsSnapshot], log: Log, interval: float) -> None:
    """Log the engine's speed every `interval` seconds in which it did something, until cancelled."""
    speed = Speed(stats)
    while True:
        await asyncio.sleep(interval)
        found = speed.read()
        if found is not None:
            log({"time": round(time.time(), 3), **found})
