"""Replays of recorded answers: files that keep them, a clock that adds up, lengths that are worth choosing."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay import main
from benchmarks.replays import costs, traces
from benchmarks.replays.costs import PRESETS, Costs, LookUps, Passes
from benchmarks.replays.recording import record
from benchmarks.replays.regret import measure
from benchmarks.replays.replay import PLAIN, Noise, Replay, Setting, priced, replay
from benchmarks.replays.traces import NEVER, Recorded, Trace
from parlay.config.speculative import AUTO
from parlay.errors import ConfigError
from parlay.proposers.select import automatic
from parlay.types.draft import Draft

FOLDER = Path(__file__).parents[1] / "bench" / "traces"
TRACES = [
    f"{asked}-{temperature}" for temperature in ("0", "0.8") for asked in ("completion", "edit", "agent", "random")
]
HEADS = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")  # of which there are traces
LENGTHS = (1, 3, 8)
LEAST, MOST_REGRET = 0.985, 0.05


def load(name: str) -> Trace:
    return traces.read(FOLDER / f"{name}.jsonl.gz")


def small(count: int = 6, tokens: int = 20) -> Trace:
    """Return answers that count in a circle, and a head that is right about two tokens of three."""
    requests = []
    for first in range(count):
        output = tuple((first + i) % 7 + 1 for i in range(tokens))
        chains = [
            Draft.chain([t if (i + j) % 3 else 99 for j, t in enumerate(output[i : i + 4])], "eagle", [0.5] * 4)
            if len(output[i : i + 4]) == 4
            else Draft.chain(output[i : i + 4], "eagle", [0.9] * len(output[i : i + 4]))
            for i in range(1, tokens)
        ]
        requests.append(Recorded((5, 6, 7, first + 1), output, {"eagle": tuple(chains)}))
    return Trace("none", "circle", 0.0, "test", tuple(requests))


# ---------------------------------------------------------------------------------------------------------- files


def test_a_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    trace, path = small(), tmp_path / "trace.jsonl.gz"
    traces.write(path, trace)
    first = path.read_bytes()
    traces.write(path, trace)
    assert path.read_bytes() == first
    back = traces.read(path)
    assert (back.model, back.workload, back.temperature, back.numerics) == ("none", "circle", 0.0, "test")
    for own, other in zip(trace.requests, back.requests, strict=True):
        assert (own.prompt, own.output) == (other.prompt, other.output)
        for i, (a, b) in enumerate(zip(own.chains["eagle"], other.chains["eagle"], strict=True)):
            agree = traces.right(a.tokens, own.output[i + 1 :])
            assert b.tokens[: agree + 1] == a.tokens[: agree + 1]
            assert set(b.tokens[agree + 1 :]) <= {NEVER}
            assert b.probs == pytest.approx(a.probs, abs=0.03)
    assert traces.read(path).requests == back.requests


@pytest.mark.parametrize("text", [b"", b"no gzip", b"\x1f\x8b\x08\x00"])
def test_other_files_are_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "other.jsonl.gz"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"benchmarks.record|no trace"):
        traces.read(path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trace"):
        list(traces.read_all([tmp_path]))
    with pytest.raises(ConfigError, match="no trace to read"):
        list(traces.read_all([tmp_path / "none"]))


def test_what_is_recorded_has_a_chain_for_every_position() -> None:
    [trace] = record("tiny-code", ["random"], [0.8], prompts=2, tokens=12, length=3, tick=lambda _: None)
    assert set(trace.methods) == {*HEADS, "self"}
    for request in trace.requests:
        assert len(request.output) == 12
        for chains in request.chains.values():
            assert len(chains) == 11
            assert all(len(chain) == min(3, 10 - i) for i, chain in enumerate(chains))
        assert all(chain.probs is not None for chain in request.chains["eagle3"] if chain.tokens)
        assert all(chain.probs is not None for chain in request.chains["draft_model"] if chain.tokens)


def test_unknown_workloads_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'edit'"):
        list(record("tiny-code", ["edits"], [0.0], 1, 4, 2, lambda _: None))


def test_own_prompts_are_recorded(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "def f("}\n{"prompt": "import os"}\n')
    [trace] = record("tiny-code", [], [0.0], 2, tokens=4, length=2, tick=lambda _: None, datasets=[file])
    assert trace.workload == "mine"
    assert [len(request.output) for request in trace.requests] == [4, 4]


# ---------------------------------------------------------------------------------------------------------- clock


FLAT = Costs(name="flat", passes=((1, 1.0), (64, 1.0)))


def test_a_table_is_linear_in_between_and_in_proportion_beyond() -> None:
    table = Costs(name="t", passes=((1, 1.0), (3, 2.0)), key=0.5)
    assert [table.seconds(rows) for rows in (0, 1, 2, 3, 6)] == [0.0, 1.0, 1.5, 2.0, 4.0]
    assert table.key_share == 0.5


def test_steps_of_plain_decoding_are_counted_by_hand() -> None:
    trace = small(count=2)
    outcome = replay(trace.requests, PLAIN, 2, FLAT, steps=19)
    # A step for the prompts, which is free; then two tokens a second, until as many are out as answers have.
    assert outcome.seconds[0] == 0
    assert [step.rows for step in outcome.steps] == [8] + [2] * 19
    assert outcome.tokens_per_second == pytest.approx(2.0)
    assert outcome.mean_length == outcome.drafted_share == 0


def test_the_price_of_a_step_has_all_parts() -> None:
    table = Costs(
        name="t",
        passes=((1, 1.0), (2, 2.0)),
        key=0.001,
        step=10.0,
        turn=100.0,
        look_ups={"ngram": LookUps(asked=1e3, shown=1e4)},
        drafting={"eagle": Passes(always=0.1, begin=0.2, token=0.3)},
    )
    run = Replay(small().requests, Setting(method="ngram", length=2), 1, table)
    run.step()  # the prompt
    step = run.step()
    assert step.seconds(table) == pytest.approx(step.rows + 0.005 + 110 + 1e3 + 1e4 * step.emitted)
    run = Replay(small().requests, Setting(method="eagle", length=2), 1, table)
    run.step()
    step = run.step()
    assert (step.longest, step.drafted) == (2, 2)
    assert step.drafting_seconds(table, "eagle") == pytest.approx(0.1 + 0.2 + 2 * 0.3)


@pytest.mark.parametrize("method", ["eagle", "ngram", "suffix"])
@pytest.mark.parametrize("chosen", [False, True])
def test_every_answer_is_what_was_recorded(method: str, chosen: bool) -> None:
    """Otherwise a guess would be looked up in the wrong place; and whatever drafts, as many tokens come out."""
    trace = small()
    run = Replay(trace.requests, Setting(method=method, length=4, chosen=chosen), 3, FLAT)
    seen: dict[int, list[int]] = {}
    for _ in range(40):
        for request in list(run._scheduler.requests):
            seen[request.request_id] = request.tokens
        run.step()
    assert len(seen) > 6
    for number, tokens in seen.items():
        whole = trace.requests[number % 6]
        assert tokens == [*whole.prompt, *whole.output][: len(tokens)]
    assert run.outcome.mean_length > 0


def test_other_prices_of_the_same_steps() -> None:
    trace, setting = small(), Setting(method="eagle", length=3)
    table = PRESETS["smollm2-135m-fp32"]
    there = priced(replay(trace.requests, setting, 2, FLAT), setting, table, weights=True)
    assert there.seconds == replay(trace.requests, setting, 2, table).seconds


def test_noise_is_the_same_every_time() -> None:
    trace = small()
    noise = Noise(spread=0.2, burst=0.05, steps=5, factor=3.0, seed=1)
    runs = [replay(trace.requests, Setting(method="eagle", chosen=True), 2, FLAT, noise=noise) for _ in range(2)]
    assert runs[0] == runs[1]
    target = [
        s for s, step in zip(runs[0].seconds, runs[0].steps, strict=True) if not step.prompt and not step.longest
    ]
    assert 0.8 <= min(target) < 1 < 2.4 <= max(target)


# ------------------------------------------------------------------------------------------------- chosen lengths


def check(trace: str, batch: int, method: str, tables: list[Costs]) -> None:
    rows = list(measure([load(trace)], [batch], tables, [method], LENGTHS, lambda _: None))
    assert len(rows) == len(tables)
    for row in rows:
        at_least = unavoidable(PRESETS[row["costs"]], method, batch)
        # Goals that heads which follow the text miss: a try of theirs has to catch up first.
        follows = PRESETS[row["costs"]].drafting.get(method, Passes()).always > 0
        assert row["chosen_ratio"] > LEAST / (1 + at_least), row
        assert row["regret"] < MOST_REGRET + 0.03 * follows + at_least, row


def unavoidable(table: Costs, method: str, batch: int) -> float:
    """Return what no choice of lengths avoids, as a share of a plain step: host proposers are shown every token."""
    step = table.seconds(batch) + table.step + table.turn * batch
    hosts = automatic() if method == AUTO else [method]
    return sum(table.look_ups.get(name, LookUps()).shown for name in hosts) * batch / step


def in_turn(trace: str, turn: int) -> Costs:
    """Return a cost table: each has one workload, at both temperatures."""
    return list(PRESETS.values())[(TRACES.index(trace) + turn) % len(PRESETS)]


# Turns apart, so that a table has other workloads in each test, and one half of the traces for the host, the other
# for weights, each with both temperatures. `make soak` runs every combination.
HALVES = TRACES[:2] + TRACES[6:], TRACES[2:6]


@pytest.mark.parametrize(
    ("trace", "batch", "method"),
    [(trace, (8, 1)[i % 2], (AUTO, "suffix", "ngram")[i]) for i, trace in enumerate(HALVES[0][:3])],
)
def test_chosen_lengths_of_proposers_on_the_host(trace: str, batch: int, method: str) -> None:
    check(trace, batch, method, [in_turn(trace, 0)])


@pytest.mark.parametrize(
    ("trace", "batch", "method"),
    [
        *((trace, (8, 1)[i % 2], HEADS[i]) for i, trace in enumerate(HALVES[1])),
        ("completion-0.8", 1, HEADS[4]),
    ],
)
def test_chosen_lengths_of_proposers_with_weights(trace: str, batch: int, method: str) -> None:
    check(trace, batch, method, [in_turn(trace, 1)])


@pytest.mark.parametrize(("trace", "method"), [(HALVES[1][0], AUTO), (HALVES[1][3], "suffix")])
def test_more_nodes_to_choose_from_are_never_worse(trace: str, method: str) -> None:
    check_more_nodes(trace, method, [in_turn(trace, 2)])


def check_more_nodes(trace: str, method: str, tables: list[Costs]) -> None:
    requests = load(trace).requests
    for table in tables:
        few, many = (
            replay(requests, Setting(method=method, length=most, chosen=True), 8, table).tokens_per_second
            for most in (4, 16)
        )
        assert many > 0.98 * few, (table.name, few, many)


@pytest.mark.soak
@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("method", [AUTO, *HEADS, "ngram", "suffix"])
@pytest.mark.parametrize("trace", TRACES)
def test_chosen_lengths_under_all_costs(trace: str, method: str, batch: int) -> None:
    check(trace, batch, method, list(PRESETS.values()))


@pytest.mark.soak
@pytest.mark.parametrize("method", [AUTO, "suffix"])
@pytest.mark.parametrize("trace", TRACES)
def test_more_nodes_under_all_costs(trace: str, method: str) -> None:
    check_more_nodes(trace, method, list(PRESETS.values()))


@pytest.mark.parametrize("method", ["suffix", "eagle"])
def test_neighbours_do_not_make_it_slow(method: str) -> None:
    trace, noise = load("completion-0"), Noise(spread=0.1, burst=0.01, steps=30, factor=2.0, seed=3)
    table, half = PRESETS["smollm2-135m-bf16"], trace.requests[::2]
    quiet = replay(half, Setting(method=method, chosen=True), 8, table)
    noisy = replay(half, Setting(method=method, chosen=True), 8, table, noise=noise)
    plain, hindered = replay(half, PLAIN, 8, table), replay(half, PLAIN, 8, table, noise=noise)
    ratio = noisy.tokens_per_second / hindered.tokens_per_second
    assert ratio > 0.9 * quiet.tokens_per_second / plain.tokens_per_second


# ------------------------------------------------------------------------------------------------------- commands


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces.write(tmp_path / "circle.jsonl.gz", small())
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"passes": [[1, 0.01], [8, 0.02]], "look_ups": {"ngram": {"asked": 1e-6}}}))
    flags = ["--costs", str(own), "tiny-code-bf16", "--batch-sizes", "2", "--methods", "ngram", "eagle"]
    assert main([str(tmp_path / "circle.jsonl.gz"), *flags]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = [(row["costs"], row["method"]) for row in result["rows"]]
    assert found == [(c, m) for m in ("ngram", "eagle") for c in ("own", "tiny-code-bf16")]
    for row in result["rows"]:
        assert row["regret"] == pytest.approx(1 - row["chosen_ratio"] / row["best_ratio"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--costs", "tiny-cod-bf16"], "did you mean 'tiny-code-bf16'"),
        (["--methods", "medusa"], "no chains of 'medusa'"),
        (["--measure", "tiny-cod"], "there is no model"),
    ],
)
def test_wrong_flags(tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    traces.write(tmp_path / "circle.jsonl.gz", small())
    assert main([str(tmp_path), *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no cost table"),
        ("{}", "is no cost table"),
        ('{"passes": [[2, 1]]}', "begin with one row"),
        ('{"passes": [[1, 0]]}', "more than 0 seconds"),
        ('{"passes": [[1, 1]], "rows": 1}', "'rows', which no cost table has"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        costs.read(path)
