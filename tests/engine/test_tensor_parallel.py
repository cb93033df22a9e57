"""Engines of several ranks: the tokens and bits of one, and what happens when a rank is lost."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asking import accepted, assert_same, assert_same_so_far, half_repeating, meddle_at_random, run, with_params
from checkpoints import write_llama
from conftest import MakeLLM, Pair, Plain, proposer_options
from crossing import crossed
from server_process import alive
from serving import wait_for
from watching import Known, Watch

from parlay import LLM, ConfigError, RankError, SamplingParams
from parlay.engine import local_ranks
from parlay.engine.engine import Engine
from parlay.engine.local_ranks import share_threads
from parlay.types.draft import Draft

pytestmark = pytest.mark.usefixtures("forked_ranks")

SOON = 20.0  # seconds in which processes must have ended
PROGRAM = local_ranks._COMMAND


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


SPLITS = [
    {"tensor_parallel_size": 2},
    {"tensor_parallel_size": 3},
    {"pipeline_parallel_size": 2},
    {"pipeline_parallel_size": 3},
    {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
    {"pipeline_parallel_size": 3, "tensor_parallel_size": 2},
]
BRANCHING = {"tree": {"width": 3, "depth": 3}}


@crossed(
    split=SPLITS,
    drafted=[
        ("draft_model", BRANCHING, "float32"),
        ("eagle3", BRANCHING, "bfloat16"),
        ("suffix", {}, "float32"),
        ("medusa", {}, "bfloat16"),
        ("eagle3", {}, "float32"),
        ("draft_model", {}, "bfloat16"),
    ],
)
def test_same_tokens(
    make_llm: MakeLLM,
    plain: Plain,
    models: dict[str, Pair],
    split: dict[str, int],
    drafted: tuple[str, dict[str, Any], str],
) -> None:
    """Ranks with shares of layers, with whole ones, or both; a third rank has no head of these targets.

    Stages are each at work on other requests.
    """
    method, more, dtype = drafted
    asks = half_repeating(0.7)[:8]
    config = {"method": method, "num_speculative_tokens": 6, **proposer_options(method, models[dtype]), **more}
    if method != "suffix" and "pipeline_parallel_size" in split:
        config["draft_tensor_parallel_size"] = split.get("tensor_parallel_size", 1)  # of the first stage's ranks
    llm = make_llm(speculative_config=config, dtype=dtype, **split, max_num_batched_tokens=40)
    found = run(llm, asks)
    assert_same(found, plain(dtype, asks))
    assert accepted(found) > 0
    assert llm.numerics_id == make_llm(dtype=dtype).numerics_id


@crossed(
    method_and_drafters=[
        *[(method, 1) for method in ("self", "draft_model", "eagle3")],
        *[(method, 2) for method in ("draft_model", "pard", "eagle", "eagle3", "medusa", "mlp_speculator")],
    ],
    tree=["off", {"width": 3, "depth": 3}],
    dtype=["float32", "bfloat16"],
)
def test_drafts_of_two_ranks(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    method_and_drafters: tuple[str, int],
    tree: Any,
    dtype: str,
) -> None:
    """Whether one or both of them have the proposer's layers, they draft what one rank alone does."""
    method, drafters = method_and_drafters
    asks = half_repeating(0.7)[:5] + half_repeating(0.0)[5:10]
    config = {"method": method, "num_speculative_tokens": 6, "lengths": "fixed", "tree": tree}
    config |= proposer_options(method, models[dtype])
    crowded = {"dtype": dtype, "num_blocks": 24, "max_num_batched_tokens": 40}

    def drafts(config: dict[str, Any], **options: Any) -> dict[Known, Draft]:
        watch = Watch(meddle_at_random(random.Random(4), preempted=0.3, aborted=0.15))
        found = run(make_llm(speculative_config=config, **crowded, **options), asks, watch)
        assert_same_so_far(found, plain(dtype, asks))
        assert {one.finish_reason == "abort" for one in found} == {True, False}
        assert any(one.metrics.preemptions for one in found)
        assert accepted(found) > 0
        return {known: noted.draft for known, noted in watch.drafts.items()}

    shared = {} if drafters == 1 else {"draft_tensor_parallel_size": drafters}
    assert drafts({**config, **shared}, tensor_parallel_size=2) == drafts(config)


def test_drafts_of_two_of_four_ranks(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain) -> None:
    """The others take part in the target's passes alone."""
    asks = half_repeating(0.7)[:2]
    config = {"method": "eagle3", **proposer_options("eagle3", models["float32"]), "draft_tensor_parallel_size": 2}
    llm = make_llm(speculative_config=config, tensor_parallel_size=4)
    found = run(llm, asks)
    assert_same(found, plain("float32", asks))
    assert accepted(found) > 0


def test_every_stage_has_a_plan(make_llm: MakeLLM) -> None:
    """Requests are divided among as many plans, and each is in one at a time. Closing the engine ends all ranks."""
    engine = make_llm(pipeline_parallel_size=3).engine
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    requests = [request for text in "abcdefg" for request in engine.add(text, params)]
    for _ in range(6):
        engine.step()
        plans = [step.plan for step in engine._worker._under_way]
        assert len({span.request_id for plan in plans for span in plan.spans}) == sum(len(p.spans) for p in plans)
    assert {len(plan.spans) for plan in plans} <= {2, 3}
    assert len(plans) == 2  # beside the one that is committed
    engine.abort(requests[0])
    engine.preempt(requests[1])
    engine.check()
    finish(engine)
    engine.check()
    assert engine._pool.available == engine._pool.num_blocks
    assert {len(request.output_tokens) for request in requests[1:]} == {20}
    pids = engine.ranks.pids
    assert all(map(alive, pids))
    engine.close()
    assert not any(map(alive, pids))


@pytest.mark.parametrize(
    ("sharing", "stages"), [(2, 2), *[pytest.param(*split, marks=pytest.mark.soak) for split in ((2, 1), (1, 2))]]
)
def test_several_methods_with_chosen_lengths(
    make_llm: MakeLLM, plain: Plain, models: dict[str, Pair], sharing: int, stages: int
) -> None:
    config = [
        {"method": "auto", "lengths": "goodput"},
        {"method": "eagle3", **proposer_options("eagle3", models["float32"])},
    ]
    asks = half_repeating(0.0)
    split = {"tensor_parallel_size": sharing, "pipeline_parallel_size": stages}
    llm = make_llm(speculative_config=config, **split, num_blocks=24, max_num_batched_tokens=40)
    assert_same(run(llm, asks), plain("float32", asks))


@crossed(method=["draft_model", "ngram"], ranks=[2, 3], dtype=["float32", "bfloat16"])
def test_ranks_that_add_sums(make_llm: MakeLLM, models: dict[str, Pair], method: str, ranks: int, dtype: str) -> None:
    """Their bits are not those of one rank, and the id says so; but speculation and company change nothing there."""
    asks = half_repeating(0.7)[:5]
    how: dict[str, Any] = {"dtype": dtype, "tensor_parallel_size": ranks, "tensor_parallel_mode": "fast"}
    config = {"method": method, **proposer_options(method, models[dtype])}
    llm = make_llm(speculative_config=config, enable_prefix_caching=False, **how)
    expected = [run(llm, [with_params(ask, speculative={"enabled": False})])[0] for ask in asks]
    found = run(llm, asks)
    assert_same(found, expected)
    assert accepted(found) > 0 == accepted(expected)
    one = make_llm(dtype=dtype)
    assert llm.numerics_id == f"{one.numerics_id}/tp{ranks}-fast"
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    ours, theirs = (each.generate([[*range(1, 30)]], params, use_tqdm=False)[0] for each in (llm, one))
    assert ours.prompt_logprobs != theirs.prompt_logprobs
    for mine, other in zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True):
        for token, entry in mine.items():
            assert entry.logprob == pytest.approx(other[token].logprob, abs=1e-4 if dtype == "float32" else 0.2)


def test_sums_of_blocks_that_ranks_would_divide(tmp_path: Path) -> None:
    written = write_llama(tmp_path, hidden_size=64, num_attention_heads=4, num_key_value_heads=4)
    with pytest.raises(
        (ConfigError, RankError), match=r"cannot split this model among 4 ranks: inputs .* whole blocks"
    ):
        LLM(
            str(written),
            tensor_parallel_size=4,
            tensor_parallel_mode="fast",
            quantization="int8",
            max_model_len=64,
        )


@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_a_rank_that_is_killed_ends_the_engine(make_llm: MakeLLM, split: str) -> None:
    llm = make_llm(**{split: 3})
    engine = llm.engine
    pids = engine.ranks.pids
    (request,) = engine.add("abc", SamplingParams(max_tokens=100, ignore_eos=True))
    engine.step()
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: not alive(pids[0]), SOON)
    with pytest.raises(RankError, match="start the engine again"):
        finish(engine)
    engine.abort(request)
    wait_for(lambda: not any(map(alive, pids)), SOON)  # none waits for one that is lost


@pytest.mark.parametrize(("split", "who"), [("tensor_parallel_size", "rank"), ("pipeline_parallel_size", "stage")])
def test_a_rank_that_hangs_is_given_up(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, split: str, who: str
) -> None:
    monkeypatch.setattr(local_ranks, "_COMMAND", PROGRAM)  # the process that is stopped must be the rank
    monkeypatch.setenv("PARLAY_RANK_TIMEOUT", "0.5")
    llm = make_llm(**{split: 2})
    engine = llm.engine
    (pid,) = engine.ranks.pids
    (request,) = engine.add("abc", SamplingParams(max_tokens=100, ignore_eos=True))
    engine.step()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(RankError, match=f"{who} 1 of this engine has not come"):
            finish(engine)
    finally:
        os.kill(pid, signal.SIGCONT)
    engine.abort(request)


def test_ranks_end_with_the_process_that_started_them(models: dict[str, Pair]) -> None:
    """Killed without a chance to tidy up."""
    script = (
        "import sys, time; from parlay import LLM\n"
        f"llm = LLM({str(models['float32'].target)!r}, tensor_parallel_size=2, max_model_len=64)\n"
        "print(*llm.engine.ranks.pids, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rank = int(process.stdout.readline())
        assert alive(rank)
        process.kill()
    wait_for(lambda: not alive(rank), SOON)


def test_a_rank_that_cannot_start(models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ranks, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(RankError, match="rank 1 ended while it started"):
        LLM(str(models["float32"].target), tensor_parallel_size=2, max_model_len=64)


def test_ranks_with_other_bits_are_refused(models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    own = local_ranks.env.inherited
    monkeypatch.setattr(local_ranks.env, "inherited", lambda more: own({**more, "PARLAY_ISA": "baseline"}))
    with pytest.raises(
        ConfigError, match=r"rank 1 would compute different bits than rank 0: native-.* here, native-baseline"
    ):
        LLM(str(models["float32"].target), tensor_parallel_size=2, max_model_len=64)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be between 1 and 64, not 0"),
        ({"tensor_parallel_size": 65}, "between 1 and 64, not 65"),
        ({"pipeline_parallel_size": 4}, "pipeline_parallel_size=4 exceeds the model's 3 layers"),
        (
            {"pipeline_parallel_size": 2, "speculative_config": {"method": "self"}},
            "of which pipeline_parallel_size=2 leaves each rank some layers",
        ),
    ],
)
def test_what_is_refused(models: dict[str, Pair], options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LLM(str(models["float32"].target), **options)


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa", "mlp_speculator"])
def test_drafts_on_ranks_that_do_not_divide_the_targets(models: dict[str, Pair], method: str) -> None:
    config = {**proposer_options(method, models["float32"]), "draft_tensor_parallel_size": 2}
    with pytest.raises(ConfigError, match="draft_tensor_parallel_size=2 is no divisor of tensor_parallel_size=3"):
        LLM(str(models["float32"].target), tensor_parallel_size=3, speculative_config=config)


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf"])
def test_a_time_to_wait_that_is_none(models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("PARLAY_RANK_TIMEOUT", seconds)
    with pytest.raises(ConfigError, match="PARLAY_RANK_TIMEOUT must be a number of seconds above 0"):
        LLM(str(models["float32"].target), tensor_parallel_size=2)


def test_threads_are_divided_among_ranks(caplog: pytest.LogCaptureFixture) -> None:
    assert share_threads(8, 2) == [4, 4]
    assert share_threads(7, 3) == [2, 2, 3]
    assert not caplog.records
    assert share_threads(2, 3) == [1, 1, 1]
    assert "3 ranks share 2 threads" in caplog.text
