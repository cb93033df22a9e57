"""The log as people read it, and the engine's speed in it."""

import asyncio
from typing import Any

import pytest

from parlay.server.listen import closing
from parlay.server.logs import Speed, log_text, report_speed, text_of
from parlay.types.stats import GuessStats, StatsSnapshot

REQUEST = {
    "time": 1.0, "status": 200, "method": "POST", "path": "/v1/completions", "seconds": 0.123, "prompt_tokens": 7,
    "completion_tokens": 9,
}  # fmt: skip


def test_a_request_is_a_line() -> None:
    assert text_of(REQUEST).split("  ")[1:] == ["200", "POST", "/v1/completions", "0.12 s", "7 + 9 tokens"]
    refused = {"status": 400, "method": "POST", "path": "/x", "seconds": 0.0, "error": "no", "warnings": ["a", "b"]}
    assert text_of(refused).split("  ")[1:] == ["400", "POST", "/x", "0.00 s", "no", "a; b"]


def test_an_event_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_text({"time": 1.0, "event": "speed", "tokens_per_second": 3.5, "running": 2})
    assert capsys.readouterr().err.endswith(" speed: tokens per second 3.5, running 2\n")


def counters(steps: int, emitted: int, drafted: int = 0, accepted: int = 0) -> StatsSnapshot:
    methods = {"ngram": GuessStats(drafted=drafted, accepted=accepted)}
    return StatsSnapshot(steps=steps, emitted=emitted, prefilled=steps, methods=methods, blocks=10, blocks_used=5)


def test_speed_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("parlay.server.logs.time.monotonic", lambda: now)
    stats = counters(10, 20)
    speed = Speed(lambda: stats)
    assert speed.look() is None  # nothing was done
    stats, now = counters(30, 80, 60, 40), 2.0
    found = speed.look()
    assert found == {
        "event": "speed", "tokens_per_second": 30.0, "prompt_tokens_per_second": 10.0, "tokens_per_step": 3.0,
        "guesses_accepted": "40 of 60", "running": 0, "waiting": 0, "cache_used": "50%",
    }  # fmt: skip
    stats, now = counters(1, 2), 4.0
    assert speed.look() is None  # the engine began anew
    stats, now = counters(2, 4), 6.0
    assert speed.look() is not None


def test_a_prompt_is_seen_while_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token emitted or a request admitted since the last look."""
    now = 0.0
    monkeypatch.setattr("parlay.server.logs.time.monotonic", lambda: now)
    stats = StatsSnapshot(steps=2, prompt_tokens=8000, prefilled=1024, running=1)
    speed = Speed(lambda: stats)
    stats, now = StatsSnapshot(steps=4, prompt_tokens=8000, prefilled=2048, running=1), 4.0
    found = speed.look()
    assert found is not None
    assert (found["prompt_tokens_per_second"], found["tokens_per_second"]) == (256.0, 0.0)


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 open request;"), (2, "2 open requests;"), (16, "16 open requests")]
)
def test_whom_a_server_waits_for_at_its_end(count: int, words: str) -> None:
    said = closing(count, 30.0)
    assert words in said
    assert "up to 30 s" in said
    assert "Ctrl-C again ends at once" in said


def test_it_is_told_while_there_is_work() -> None:
    told: list[dict[str, Any]] = []
    stats = [counters(1, 1), counters(2, 5), counters(2, 5)]

    async def watch() -> None:
        task = asyncio.create_task(
            report_speed(lambda: stats.pop(0) if len(stats) > 1 else stats[0], told.append, 0.001)
        )
        while len(stats) > 1:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(watch())
    assert [one["event"] for one in told] == ["speed"]
