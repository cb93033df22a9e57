"""`parlay bench serve`: when it sends what, what it reads, what it makes of it."""

import json
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from fake_server import event, serving, texts
from hypothesis import given
from hypothesis import strategies as st

from parlay import ConfigError, ParlayError
from parlay.bench.load import Outcome, Run, Splitter, arrivals, asks, measure
from parlay.bench.load_summary import acceptance, latencies, panels, summarise
from parlay.bench.options import LoadOptions
from parlay.bench.plot import draw
from parlay.cli.main import main

SOME = {"num_prompts": 6, "input_len": 12, "output_len": 8, "num_warmups": 0}


def quiet(label: str) -> None:
    """Say nothing."""


def answer(number: int, body: dict[str, Any]) -> tuple[int, list[bytes]]:
    chat = "messages" in body
    return 200, texts(*(f"w{i} " for i in range(body["max_tokens"] // 2)), usage=body["max_tokens"], chat=chat)


# ------------------------------------------------------------------------------------------------------ what is sent


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_arrivals_have_their_rate_and_spread(burstiness: float) -> None:
    options = LoadOptions(num_prompts=20_000, request_rate=50, burstiness=burstiness)
    due = list(arrivals(options))
    assert due == list(arrivals(options))
    assert due != list(arrivals(replace(options, seed=1)))
    pauses = [b - a for a, b in pairwise(due)]
    assert fmean(pauses) == pytest.approx(1 / 50, rel=0.05)
    # A gamma distribution's coefficient of variation is one over the root of its shape.
    assert pstdev(pauses) / fmean(pauses) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_number_or_a_duration_or_both() -> None:
    assert list(arrivals(LoadOptions())) == [0.0] * 100
    assert len(list(arrivals(LoadOptions(num_prompts=7, request_rate=3)))) == 7
    due = list(arrivals(LoadOptions(duration=20, request_rate=30)))
    assert 400 < len(due) < 800
    assert max(due) <= 20
    assert list(arrivals(LoadOptions(duration=20, request_rate=30, num_prompts=5))) == due[:5]


def test_the_seed_decides_the_requests() -> None:
    options = LoadOptions(num_prompts=50, input_len=20, output_len=40, range_ratio=0.5, request_rate=9)
    made = asks(options)
    assert made == asks(options)
    assert len({ask.prompt for ask in made}) == len({ask.seed for ask in made}) == 50
    assert min(a.max_tokens for a in made) >= 20
    assert max(a.max_tokens for a in made) <= 60
    assert len({a.max_tokens for a in made}) > 10
    # How fast they come changes nothing about what comes.
    assert [a.prompt for a in asks(replace(options, request_rate=inf))] == [a.prompt for a in made]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_what_the_server_is_asked(endpoint: Any) -> None:
    options = LoadOptions(**SOME, endpoint=endpoint, ignore_eos=True, temperature=0.5)
    with serving(answer) as server:
        run = measure(replace(options, base_url=f"{server.url}/v1/"), "secret", quiet)
    assert {path for path in server.paths if path.startswith("/v1/c")} == {
        "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    }
    assert all(headers["authorization"] == "Bearer secret" for headers in server.headers)
    bodies = {body["seed"]: body for body in server.seen}
    for ask, outcome in zip(asks(options), run.outcomes, strict=True):
        body = bodies[ask.seed]
        prompt = body["messages"][0]["content"] if endpoint == "chat" else body["prompt"]
        assert prompt == ask.prompt
        assert (body["model"], body["stream"], body["ignore_eos"], body["temperature"]) == ("fake", True, True, 0.5)
        assert body["max_tokens"] == ask.max_tokens == outcome.tokens
        assert outcome.error is None
        assert len(outcome.events) == ask.max_tokens // 2
        assert 0 <= outcome.due <= outcome.ready <= outcome.sent < outcome.events[0]
        assert list(outcome.events) == sorted(outcome.events)
        assert outcome.events[-1] <= outcome.end


def test_without_options_nothing_foreign_is_sent() -> None:
    with serving(answer) as server:
        measure(LoadOptions(**SOME, base_url=server.url, model="mine"), None, quiet)
    assert "ignore_eos" not in server.seen[0]
    assert "authorization" not in server.headers[0]
    assert server.seen[0]["model"] == "mine"
    assert "/v1/models" not in server.paths


def test_prompts_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    lines = [{"prompt": "a"}, {"turns": ["b", "c"]}, {"messages": [{"role": "user", "content": "d"}]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    options = LoadOptions(num_prompts=30, dataset=str(file))
    assert {ask.prompt for ask in asks(options)} == {"a", "b", "d"}
    assert asks(options) == asks(options)
    for line in ("{}", '{"turns": []}', '{"messages": [1]}', "["):
        file.write_text(line)
        with pytest.raises(ConfigError, match=r"own.jsonl, line 1: "):
            asks(options)
    file.write_text("")
    with pytest.raises(ConfigError, match="holds no prompts"):
        asks(options)


def test_no_more_are_open_than_asked_for() -> None:
    with serving(answer) as server:
        run = measure(LoadOptions(**SOME, base_url=server.url, max_concurrency=2), None, quiet)
    assert server.most_open <= 2
    row = summarise(run, LoadOptions(max_concurrency=2))
    assert row["completed"] == 6
    assert row["held_back_ms"]["max"] > 0
    assert max(o.sent - o.ready for o in run.outcomes[2:]) > 0


# ------------------------------------------------------------------------------------------------------ what is read


@given(st.lists(st.text(min_size=1).filter(lambda t: not set(t) & set("\r\n")), max_size=6), st.data())
def test_events_are_found_wherever_chunks_end(events: list[str], data: st.DataObject) -> None:
    newline = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    raw = b"".join(b": ping" + newline + b"data: " + e.encode() + newline * 2 for e in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    splitter = Splitter()
    pieces = [raw[a:b] for a, b in pairwise([0, *cuts, len(raw)])]
    assert [e for piece in pieces for e in splitter.feed(piece)] == events


WRONG: dict[str, tuple[int, list[bytes], str]] = {
    "refused": (429, [b'{"error": {"message": "too many"}}'], "429: too many"),
    "bad": (400, [b'{"error": {"message": "no"}}'], "400: no"),
    "no json": (502, [b"<html>\n"], "502: <html>"),
    "breaks off": (200, texts("a", "b")[:2], "the answer broke off"),
    "torn": (200, [*texts("a")[:1], b""], "ProtocolError"),
    "late error": (200, [texts("a")[0], event(error={"message": "gone"})], "in the stream: gone"),
    "garbage": (200, [b"data: {nonsense\n\n"], "none of this protocol"),
    "wrong shape": (200, [b"data: [1]\n\n"], "none of this protocol"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_goes_wrong_is_counted(kind: str) -> None:
    status, chunks, words = WRONG[kind]

    def mixed(number: int, body: dict[str, Any]) -> tuple[int, list[bytes]]:
        return (status, chunks) if number == 2 else answer(number, body)

    options = LoadOptions(**SOME)
    with serving(mixed) as server:
        run = measure(replace(options, base_url=server.url), None, quiet)
    row = summarise(run, options)
    assert row["completed"] == 5
    assert (row["refused"], row["failed"]) == ((1, 0) if status == 429 else (0, 1))
    assert [words in error for error in row["errors"]] == [True]


def test_a_silent_server_is_given_up() -> None:
    def stuck(number: int, body: dict[str, Any]) -> tuple[int, list[bytes]]:
        return 200, texts(*"abcdefghij" * 40)

    options = LoadOptions(**SOME, timeout=0.05)
    with serving(stuck) as server:
        run = measure(replace(options, base_url=server.url), None, quiet)
    assert {o.error for o in run.outcomes} == {"no complete answer within 0.05 s"}
    assert summarise(run, options)["failed"] == 6


# ------------------------------------------------------------------------------------------------- what is made of it


def outcome(sent: float, *events: float, tokens: int = 0, **more: Any) -> Outcome:
    return Outcome(due=sent, ready=sent, sent=sent, end=events[-1] if events else sent, events=events, tokens=tokens)


def test_figures() -> None:
    quick = outcome(0.0, 0.1, 0.2, 0.5, tokens=5)
    slow = outcome(1.0, 1.4, 1.6, tokens=3)
    lost = replace(outcome(1.0), error="broke", ready=1.2, sent=1.2, end=2.0)
    run = Run("m", (quick, slow, lost), (0.0, 0.002), "", "")
    row = summarise(run, LoadOptions(goodput=("ttft:150", "itl:300")))
    assert row["duration_s"] == 2.0
    assert (row["requests"], row["completed"], row["failed"]) == (3, 2, 1)
    assert row["tokens_per_s"] == 4.0
    assert row["ttft"]["p50"] == pytest.approx(250)
    assert row["ttft"]["max"] == pytest.approx(400)
    assert row["tpot"]["mean"] == pytest.approx(100)
    assert row["itl"]["mean"] == pytest.approx(200)
    assert row["e2el"]["p50"] == pytest.approx(550)
    assert row["good_per_s"] == 0.5
    assert row["good_share"] == pytest.approx(1 / 3)
    assert row["late"] == 1
    assert row["late_ms"]["max"] == pytest.approx(200)
    assert row["client_lag_ms"]["max"] == pytest.approx(2)
    assert summarise(run, LoadOptions(goodput=("ttft:150", "itl:299")))["good_per_s"] == 0.0
    assert summarise(run, LoadOptions())["good_per_s"] is None


def test_nothing_was_answered() -> None:
    row = summarise(Run("m", (replace(outcome(0.0), error="no", end=1.0),), (), "", ""), LoadOptions())
    assert row["ttft"] is None
    assert latencies(row) == []
    assert json.loads(json.dumps(row)) == row


def reading(drafts: int, drafted: int, accepted: int, *positions: int, created: bool = False) -> str:
    labels = 'model_name="m",engine="0"'
    lines = [
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts:.1f}",
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}e0",
        "vllm:generation_tokens_total 12",
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {n}'
        for i, n in enumerate(positions)
    ]
    if created:
        lines.append(f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e9")
    return "\n".join(lines)


def test_acceptance() -> None:
    found = acceptance(reading(10, 50, 20, 15, 5), reading(14, 66, 28, 18, 9, 1, created=True))
    assert found == {
        "drafts": 4,
        "drafted": 16,
        "accepted": 8,
        "acceptance_rate": 0.5,
        "acceptance_length": 3.0,
        "by_position": [0.75, 1.0, 0.25],
    }
    # The engine was started anew in between.
    assert acceptance(reading(10, 50, 20), reading(4, 16, 8))["drafts"] == 4
    assert acceptance("", "") is None
    assert acceptance(reading(3, 9, 4), reading(3, 9, 4)) is None


def test_acceptance_of_more_than_nine_positions_keeps_their_order() -> None:
    found = acceptance("", reading(20, 240, 78, *range(12, 0, -1)))
    assert found is not None
    assert found["by_position"] == [n / 20 for n in range(12, 0, -1)]


def test_the_metrics_page_of_ours_is_understood() -> None:
    from types import SimpleNamespace

    from parlay.server.metrics import PrometheusMetrics
    from parlay.types.stats import DraftStats, StatsSnapshot

    guesses = DraftStats(4, 16, 8, [5, 3])
    engine = StatsSnapshot(turns=9, undrafted={"no_guess": 5}, methods={"ngram": guesses}, lengths={4: 4})
    metrics = PrometheusMetrics('a "model" in {braces}', "ngram", [SimpleNamespace(stats=engine, restarts=0)])
    found = acceptance("", metrics.expose()[0].decode())
    assert found is not None
    assert (found["drafts"], found["drafted"], found["accepted"]) == (4, 16, 8)
    assert found["by_position"] == [1.25, 0.75]


def test_a_plot(tmp_path: Path) -> None:
    run = Run("m", (outcome(0.0, 0.1, 0.2, tokens=2),), (), "", reading(4, 16, 8, 4, 3))
    shown = panels(summarise(run, LoadOptions()))
    assert len(shown) == 5
    draw(tmp_path / "load.png", "load", shown)
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------------- the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    arguments = ["bench", "serve", "--num-prompts", "5", "--request_rate", "500", "--burstiness", "0.5"]
    arguments += ["--input-len", "9", "--output-len", "6", "--goodput", "ttft:100000", "itl:100000"]
    with serving(answer, [reading(0, 0, 0), reading(4, 16, 8, 4, 4)]) as server:
        assert main([*arguments, "--base-url", server.url, "--plot", str(tmp_path / "p.png")]) == 0
    out = capsys.readouterr().out
    *table, last = out.strip().splitlines()
    found = json.loads(last)
    row = found["rows"][0]
    assert (row["model"], row["requests"], row["completed"], row["failed"]) == ("fake", 5, 5, 0)
    assert len(server.seen) == 6  # one to warm up
    assert row["good_share"] == 1.0
    assert row["speculation"]["acceptance_length"] == 3.0
    assert found["workload"]["burstiness"] == 0.5
    assert found["provenance"]["commit"] is not None
    assert any("first token (ttft)" in line for line in table)
    assert "sesame" not in out
    assert server.headers[0]["authorization"] == "Bearer sesame"
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_failed_request_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(number: int, body: dict[str, Any]) -> tuple[int, list[bytes]]:
        return (500, [b"{}"]) if number == 3 else answer(number, body)

    with serving(failing) as server:
        assert main(["bench", "serve", "--base-url", server.url, "--num-prompts", "4", "--output-len", "4"]) == 1
    streams = capsys.readouterr()
    assert "1 x 500: {}" in streams.err
    assert json.loads(streams.out.splitlines()[-1])["workload"]["request_rate"] == "inf"


def test_a_server_that_refuses_the_first_request() -> None:
    with (
        serving(lambda number, body: (401, [b'{"error": {"message": "who are you"}}'])) as server,
        pytest.raises(ParlayError, match="does not answer the first request: 401: who are you"),
    ):
        measure(LoadOptions(base_url=server.url), None, quiet)


def test_nobody_is_there() -> None:
    with serving(answer) as server:
        url = server.url
    with pytest.raises(ParlayError, match="no server answers at http://127"):
        measure(LoadOptions(base_url=url), None, quiet)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_prompts": 0}, "num_prompts must be at least 1, not 0"),
        ({"request_rate": 0.0}, "request_rate must be above 0"),
        ({"request_rate": float("nan")}, "not nan"),
        ({"burstiness": inf}, "burstiness must be finite"),
        ({"range_ratio": 1.0}, "below 1, not 1.0"),
        ({"num_warmups": -1}, "at least 0, not -1"),
        ({"duration": 5.0}, "give num_prompts"),
        ({"goodput": ("tfft:3",)}, "knows no 'tfft' .did you mean 'ttft'"),
        ({"goodput": ("ttft",)}, "milliseconds above 0 after ttft:, not ''"),
        ({"goodput": ("itl:-1",)}, "above 0 after itl:"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LoadOptions(**options)


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("localhost:8000", "is no address"),
        ("ftp://x", "is no address"),
        ("http://a:b@host", "leave user and password"),
    ],
)
def test_bad_addresses(url: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        measure(LoadOptions(base_url=url), None, quiet)
