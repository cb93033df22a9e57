"""The log as people read it, and the engine's speed in it."""

import asyncio
import json
from typing import Any

import pytest
from hostile import TERMINAL
from serving import Live, NoEngine

from parlay.server.listen import closing
from parlay.server.logs import Speed, log_line, log_text, report_speed, text_of
from parlay.types.stats import DraftStats, StatsSnapshot

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


@pytest.mark.parametrize("name", ["path", "method", "error", "warnings", "log"])
@pytest.mark.parametrize("text", TERMINAL.values(), ids=TERMINAL)
def test_a_client_writes_no_line_and_no_escape(text: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By its path, by a template that raises, by its prompt."""
    if "\ud800" in text:
        text = text.replace("\ud800", "\ufffd")  # as the server decodes it
    facts = {**REQUEST, name: [{"prompt": text}] if name == "log" else [text] if name == "warnings" else text}
    log_text(facts)
    log_line(facts)
    people, programs, rest = capsys.readouterr().err.split("\n")
    assert rest == ""
    assert people.isprintable()
    assert programs.isprintable()
    assert json.loads(programs) == facts


def test_an_event_writes_none_either() -> None:
    assert text_of({"event": "ready", "model": "a\x1b[2J"}).endswith("ready: model a\\x1b[2J")


def test_a_path_is_one_column() -> None:
    forged = {**REQUEST, "path": "/x  0.01 s  7 + 9 tokens"}
    assert text_of(forged).split("  ")[3] == "/x%20%200.01%20s%20%207%20+%209%20tokens"


def test_the_paths_that_a_client_asks_for() -> None:
    paths = "/%0a12:00:00%20%20200%20%20POST%20%20fake", "/%1b[2J%1b[31mOWNED%07", "/%c2%9b31m", "/%e2%80%ae", "/%ff"
    with Live(NoEngine()) as live:
        for path in paths:
            assert live.http.get(path).status_code == 404
    assert len(live.log) == len(paths)
    for facts in live.log:
        assert text_of(facts).isprintable()
        assert text_of(facts).count("  ") == 5


def counters(steps: int, emitted: int, drafted: int = 0, accepted: int = 0) -> StatsSnapshot:
    methods = {"ngram": DraftStats(drafted=drafted, accepted=accepted)}
    return StatsSnapshot(steps=steps, emitted=emitted, prefilled=steps, methods=methods, blocks=10, blocks_used=5)


def test_speed_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("parlay.server.logs.time.monotonic", lambda: now)
    stats = counters(10, 20)
    speed = Speed(lambda: stats)
    assert speed.read() is None  # nothing was done
    stats, now = counters(30, 80, 60, 40), 2.0
    found = speed.read()
    assert found == {
        "event": "speed", "tokens_per_second": 30.0, "prompt_tokens_per_second": 10.0, "tokens_per_step": 3.0,
        "draft_tokens_accepted": "40 of 60", "running": 0, "waiting": 0, "cache_used": "50%",
    }  # fmt: skip
    stats, now = counters(1, 2), 4.0
    assert speed.read() is None  # the engine began anew
    stats, now = counters(2, 4), 6.0
    assert speed.read() is not None


def test_a_prompt_is_seen_while_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token emitted or a request admitted since the last look."""
    now = 0.0
    monkeypatch.setattr("parlay.server.logs.time.monotonic", lambda: now)
    stats = StatsSnapshot(steps=2, prompt_tokens=8000, prefilled=1024, running=1)
    speed = Speed(lambda: stats)
    stats, now = StatsSnapshot(steps=4, prompt_tokens=8000, prefilled=2048, running=1), 4.0
    found = speed.read()
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
