"""A head that is off runs nothing; on again it has the target run what it lacks once more, if that is worth it."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from asking import Ask, assert_same, half_repeating, meddle_at_random, run, with_params
from conftest import MakeLLM, Pair, Plain, proposer_options
from torch import Tensor

from parlay.drafting.belief import Belief
from parlay.drafting.cost import StepCost
from parlay.drafting.device_drafts import DeviceDrafts
from parlay.drafting.device_length import DeviceLength
from parlay.drafting.draft_cost import DraftCost
from parlay.drafting.goodput import best_draft
from parlay.drafting.host_drafts import Faults, LoadedProposer
from parlay.drafting.policy import Policy
from parlay.drafting.state import DraftState
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.proposers.base import DeviceProposer
from parlay.types.cache import CacheSpec
from parlay.types.draft import NO_DRAFT
from parlay.types.plan import Proposal, ProposerState, Span, Verdict

METHODS = ("eagle", "eagle3")
BATCH, LACKING, LEFT = 32, 100, 250


# ------------------------------------------------------------------------------------------------- what it is worth


class Pairs(DeviceProposer):
    """Wants to have seen the target's states."""

    pairs = True

    def __init__(self) -> None:
        pass

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        raise NotImplementedError


def taught(drafting: float) -> Policy:
    """Return a policy that knows what steps and drafts of one token cost, of which 40 % are right."""
    cost, belief = StepCost(512), Belief()
    cost.learn([(rows, 0.010 + 0.0001 * rows) for rows in (1, 16, 32, 64, 256)])
    ahead = DeviceLength("pairs", cost, belief)
    for _ in range(40):
        ahead.timed(1, BATCH, drafting, 0, typical=True)
        for right in (True, False, False, True, False):
            ahead.judged([right], 1, 1)
    policy = Policy(cost, belief, ahead)
    policy.begin(BATCH, BATCH, 0)
    return policy


def rerun(policy: Policy, left: int = LEFT) -> int:
    device = DeviceDrafts(
        LoadedProposer("pairs", Pairs(), 1), policy, Faults(), share_prefixes=False, vocab_size=None
    )
    state = DraftState(device=True, layers=ProposerState(0))
    tokens = range(LACKING + 1)
    request: Any = SimpleNamespace(
        request_id=1, tokens=tokens, prompt_tokens=tokens, computed=LACKING, remaining=left, drafting=state
    )
    device.choose([request] * BATCH, [1] * BATCH, BATCH, 0)
    return device.rerun(request)


def test_what_saves_little_is_not_worth_the_rows() -> None:
    """A hundred rows take as long as 24 tokens, of 250 that are left."""
    much, little = taught(0.0001), taught(0.0013)
    savings = [
        policy.device_length.best(1, BATCH, BATCH, 0)[1]
        for policy in (much, little)
        if policy.device_length is not None
    ]
    assert 0 < savings[1] < 0.06 < savings[0]
    assert rerun(much) == LACKING
    assert rerun(much, left=20) == 0
    assert rerun(little) == rerun(little, left=100_000) == 0, "many answers end early"


def test_the_saving_is_that_of_the_best_length() -> None:
    table = [0.0, *(0.010 + 0.0001 * rows for rows in range(1, 64))]
    length, saving = best_draft([0.5, 0.1], 1, 1, table, [0.0, 0.001, 0.01])
    assert length == 1
    assert saving == pytest.approx(1 - (table[2] + 0.001) / 1.5 / table[1])
    assert best_draft([0.5, 0.1], 1, 1, table, [0.0, 0.1, 0.2]) == (0, 0.0)


class Following(Pairs):
    """Has cache layers, which process every token."""

    cache = CacheSpec(layers=1, kv_heads=1, head_dim=8, itemsize=4)


def follows(policy: Policy, left: int) -> bool:
    """Whether a head that drafts processes a prompt of a request that has so many tokens left to emit."""
    device = DeviceDrafts(
        LoadedProposer("pairs", Following(), 1), policy, Faults(), share_prefixes=False, vocab_size=None
    )
    table = SimpleNamespace(grow=lambda tokens: True, begin_draft=lambda *of, **more: ())
    tokens, state = range(LACKING), DraftState(device=True)
    request: Any = SimpleNamespace(
        request_id=1,
        tokens=tokens,
        prompt_tokens=tokens,
        computed=0,
        remaining=left,
        drafting=state,
        table=table,
        longest=999,
        tenant=None,
    )
    device.choose([request] * BATCH, [1] * BATCH, BATCH, 0)
    return device.part(request, NO_DRAFT, 1, LACKING, 0, 0, 8).catch_up.follow


def test_a_prompt_is_processed_if_the_answer_is_long_enough() -> None:
    """All requests wait while the head processes a prompt; what it saves grows with the answer."""
    policy = taught(0.0001)
    ahead = policy.device_length
    assert ahead is not None
    assert follows(policy, 10), "what it takes is not known"
    for _ in range(2):  # the first time may be that of compiling
        ahead.timed(0, 0, 0.02, 1000, typical=True)
    assert follows(policy, LEFT)
    assert not follows(policy, 10)


def test_a_prompt_counts_at_most_as_much_as_it_takes_the_target() -> None:
    """Its process was stopped for a while; otherwise no prompt might ever be processed again, and none be timed."""
    policy = taught(0.0001)
    assert policy.device_length is not None
    for _ in range(2):
        policy.device_length.timed(0, 0, 9.0, LACKING, typical=True)
    assert policy.device_length.cost.following(LACKING) <= policy.cost.table[LACKING]


@pytest.mark.parametrize("each", [0.00002, 0.005])
def test_prompts_that_are_processed_for_a_trial_are_paid(each: float) -> None:
    """Also those that take longer than the trial."""
    policy = taught(0.1)  # drafts take ten times as long as steps
    ahead = policy.device_length
    assert ahead is not None
    for _ in range(2):
        ahead.cost.observe_following(1000, 1000 * each)
    passed = paid = 0.0
    for _ in range(20_000):
        ahead.choose(0, 0, BATCH, 0, passed=16)
        passed += 16 * policy.plain
        for _ in range(BATCH):
            prompt = ahead.cost.following(LACKING)
            paid += prompt * ahead.scouts(prompt)
    assert 0 < paid < 0.006 * passed


def test_what_is_not_worth_it_is_tried_again_some_day() -> None:
    """Drafts pay, but no answer is long enough for what processing its prompt is thought to take."""
    policy = taught(0.0001)
    ahead = policy.device_length
    assert ahead is not None
    assert ahead.choose(1, BATCH, BATCH, 0) == 1
    assert not ahead.scouts(0.5)
    for _ in range(20_000):
        ahead.choose(0, 0, BATCH, 0, passed=16, ready=False)
    assert ahead.scouts(0.5)
    assert not ahead.scouts(0.5)


# ------------------------------------------------------------------------------------------------- off and on again


def asks(count: int = 16, **more: Any) -> list[Ask]:
    return [with_params(ask, **more) for ask in half_repeating(0.7)[:count]]


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of a device proposer's next drafts, as a list with one number that tests change."""
    length = [0]
    monkeypatch.setattr(DeviceLength, "choose", lambda self, most, *of, **more: min(most, length[0]))
    monkeypatch.setattr(DeviceLength, "best", lambda self, *of: (0, 1e9, 0, []))
    monkeypatch.setattr(DraftCost, "timed", True)
    monkeypatch.setattr(DraftCost, "by_length", lambda self, most, count: [0.0] * (most + 1))
    monkeypatch.setattr(DeviceLength, "affords", False)
    monkeypatch.setattr(DeviceLength, "gain", 9.0)
    monkeypatch.setattr(Policy, "may_draft", True)
    monkeypatch.setattr(
        Policy, "choose", lambda self, chances, *of, **more: [list(range(len(own))) for own in chances]
    )
    monkeypatch.setattr(DeviceDrafts, "admit", lambda self, request: None)
    return length


def passes(monkeypatch: pytest.MonkeyPatch, llm: Any) -> list[int]:
    """Note how many pairs run."""
    counts: list[int] = []
    proposer = llm.engine._worker._proposer
    keep = proposer._run_known_pairs

    def watched(batch: Any, *of: Any) -> Any:
        counts.append(len(batch.tokens))
        return keep(batch, *of)

    monkeypatch.setattr(proposer, "_run_known_pairs", watched)
    return counts


def config(method: str, models: dict[str, Pair]) -> dict[str, Any]:
    return {"method": method, "lengths": "goodput", "tree": "off", **proposer_options(method, models["float32"])}


@pytest.mark.parametrize("method", METHODS)
def test_nothing_runs_while_it_is_off(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    switched: list[int],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    llm = make_llm(speculative_config=config(method, models))
    run(llm, asks(1))  # it does not know yet that it is off
    counts = passes(monkeypatch, llm)
    assert_same(run(llm, asks()), plain("float32", asks()))
    assert counts == []


def test_what_a_prompt_takes_is_measured(make_llm: MakeLLM, models: dict[str, Pair], switched: list[int]) -> None:
    switched[0] = 2
    llm = make_llm(speculative_config=config("eagle3", models))
    ahead = llm.engine._scheduler.drafting.policy.device_length
    run(llm, asks(3, max_tokens=1))
    assert ahead.cost.following(100) == 0, "a request that emits one token has no drafts"
    for first in (3, 8):  # the first time is not counted
        run(llm, asks(first + 5)[first:])
    assert 0 < ahead.cost.following(100) < 10


@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 9, "block_size": 4}, {"enable_prefix_caching": False}]
)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_run_once_more_is_as_good(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    switched: list[int],
    method: str,
    options: dict[str, Any],
) -> None:
    """Off for a while and on again: the same drafts as if it had been on all the time."""
    several = asks(3, max_tokens=40, temperature=0.0, ignore_eos=True)

    def drafts(first: int) -> dict[tuple[int, int], Any]:
        llm = make_llm(speculative_config=config(method, models), **options)
        found: dict[tuple[int, int], Any] = {}

        def watch(engine: Engine, requests: list[Request]) -> None:
            switched[0] = 3 if max(len(request.output_tokens) for request in requests) >= first else 0
            for request in requests:
                if request.drafting.pending.tokens:
                    found[request.request_id, len(request.tokens)] = request.drafting.pending.tokens

        assert_same(run(llm, several, watch), plain("float32", several))
        return found

    always, late = drafts(0), drafts(15)
    common = always.keys() & late.keys()
    assert common, "with few rows one request catches up after another, not all before they end"
    # How long a draft may be depends on the rows that others have taken, so the shorter one counts.
    assert all(own == other for at in common for own, other in zip(always[at], late[at], strict=False))


@pytest.mark.parametrize("method", METHODS)
def test_off_and_on_at_random(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, switched: list[int], method: str
) -> None:
    rng = random.Random(6)
    meddle = meddle_at_random(rng, 0.1)

    def switch(engine: Engine, requests: list[Request]) -> None:
        if rng.random() < 0.3:
            switched[0] = rng.choice((0, 0, 2, 4))
        meddle(engine, requests)

    accepted = 0
    for options in ({}, {"max_num_batched_tokens": 24, "block_size": 4}):
        llm = make_llm(speculative_config=config(method, models), **options)
        for _ in range(2):  # the second time from cached prefixes
            answers = run(llm, asks(), switch)
            assert_same(answers, plain("float32", asks()))
            accepted += sum(answer.metrics.accepted for answer in answers)
    assert accepted > 10


@pytest.mark.parametrize("method", METHODS)
def test_a_request_that_it_follows_is_tried_without_running_anything_once_more(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    switched: list[int],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """A head that is off follows a new request where a trial is affordable, until a trial is considered."""
    monkeypatch.setattr("parlay.drafting.device_drafts.TRIAL_INTERVAL", 1 << 30)
    llm = make_llm(speculative_config=config(method, models))
    run(llm, asks(1))
    reruns = []

    def watch(engine: Engine, requests: list[Request]) -> None:
        for request in requests:
            request.drafting.scout = request.request_id == requests[0].request_id
        reruns.append(sum(len(span.catch_up.rerun) for span in getattr(engine._worker.oldest, "spans", ())))
        first = requests[0].drafting.layers
        if requests[0].computed and requests[0].remaining > 1:
            assert first.next_state == requests[0].computed

    assert_same(run(llm, asks(3), watch), plain("float32", asks(3)))
    assert not any(reruns)
