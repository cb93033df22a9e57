"""Calibrated probabilities: against laws that are known, against a slow twin, and on the drafts of every proposer."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from asking import Ask, essence, run
from conftest import MakeLLM, drafts
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from parlay import SamplingParams
from parlay.bench.tally import calibration as reported
from parlay.drafting import calibration
from parlay.drafting.calibration import DEPTHS, Calibration, log_odds
from parlay.engine.scheduler import Scheduler
from parlay.engine.stats import EngineStats
from parlay.proposers.select import proposers
from parlay.types.draft import ROOT, Draft
from parlay.types.plan import Plan, Verdict

GREEDY, SAMPLED = SamplingParams(temperature=0), SamplingParams(temperature=0.7)
DRAFTING = [name for name in proposers.names() if drafts(name)]

# How likely a node is to be accepted, from its own estimate (None if there is none) and its depth, counted from 0.
Distribution = Callable[[float | None, int], float]


def chain(length: int, source: str = "guess", probs: Sequence[float] | None = None) -> Draft:
    return Draft.chain([0] * length, source, probs)


def judge(rng: random.Random, draft: Draft, law: Distribution) -> Verdict:
    """Accept a chain's nodes by a law, up to the first that is not."""
    accepted = 0
    for depth in range(len(draft)):
        if rng.random() >= law(draft.probs[depth] if draft.probs else None, depth):
            break
        accepted += 1
    return Verdict((0,) * accepted + (1,), tuple(range(accepted)))


def learn(
    found: Calibration, rng: random.Random, raws: Iterator[Draft], law: Distribution, params: SamplingParams = GREEDY
) -> Iterator[Draft]:
    """Have one draft after another judged; yields each as it was calibrated before."""
    for raw in raws:
        draft = found.apply(raw, params)
        found.observe(draft, judge(rng, raw, law), params)
        yield draft


def estimates(found: Calibration, raw: Draft, params: SamplingParams = GREEDY) -> tuple[float, ...]:
    probs = found.apply(raw, params).probs
    assert probs is not None
    return probs


def mean(drafts: Sequence[Draft], depth: int) -> float:
    return float(np.mean([d.probs[depth] for d in drafts if d.probs is not None and len(d) > depth]))


# ---------------------------------------------------------------------------------------------------- known laws


def test_estimates_converge_to_a_law_of_depth() -> None:
    law = (0.9, 0.75, 0.6, 0.45)
    found, rng = Calibration(), random.Random(0)
    seen = list(learn(found, rng, (chain(4) for _ in range(3000)), lambda _, depth: law[depth]))
    for depth in range(4):
        assert mean(seen[300:], depth) == pytest.approx(law[depth], abs=0.04)
        late = [d.probs[depth] for d in seen[300:] if d.probs is not None]
        # About 600 nodes of a weight each; the deepest are an eighth of what is judged.
        assert float(np.std(late)) < 0.08


def test_a_jump_is_followed_within_200_steps() -> None:
    for seed in range(10):
        found, rng = Calibration(), random.Random(seed)
        list(learn(found, rng, (chain(5) for _ in range(500)), lambda *_: 0.9))
        assert min(estimates(found, chain(5))) > 0.8
        list(learn(found, rng, (chain(5) for _ in range(200)), lambda *_: 0.2))
        first, second = estimates(found, chain(2))
        assert first < 0.3
        assert second < 0.4, "a fifth as many were judged"
        list(learn(found, rng, (chain(5) for _ in range(200)), lambda *_: 0.9))
        assert min(estimates(found, chain(5))) > 0.75


@pytest.mark.parametrize("lengths", [(1, 1), (8, 8), (1, 8)], ids=str)
def test_draft_lengths_do_not_bias(lengths: tuple[int, int]) -> None:
    """Accepted / drafted of chains of 8 would be .46, not .8."""
    found, rng = Calibration(), random.Random(1)
    raws = (chain(rng.randint(*lengths)) for _ in range(2500))
    seen = list(learn(found, rng, raws, lambda *_: 0.8))
    for depth in range(min(4, lengths[1])):
        assert mean(seen[200:], depth) == pytest.approx(0.8, abs=0.02)


def test_an_overconfident_proposer_is_toned_down() -> None:
    """Its log-odds are thrice what they should be, and too high by 1."""
    truth = random.Random(2)

    def raws() -> Iterator[Draft]:
        for _ in range(3000):
            yield chain(3, probs=[_sigmoid(truth.uniform(-4, 4)) for _ in range(3)])

    def law(prob: float | None, depth: int) -> float:
        assert prob is not None
        return _sigmoid((math.log(prob / (1 - prob)) - 1) / 3)

    found, rng = Calibration(), random.Random(2)
    list(learn(found, rng, raws(), law))
    for own in (0.1, 0.5, 0.9, 0.97):
        assert estimates(found, chain(1, probs=[own]))[0] == pytest.approx(law(own, 0), abs=0.08)
    model = found._models["guess", False, False]
    assert model._slope == pytest.approx(1 / 3, abs=0.1)


def test_sources_and_temperatures_are_apart() -> None:
    found, rng = Calibration(), random.Random(3)
    laws = {("a", GREEDY): 0.9, ("a", SAMPLED): 0.5, ("b", GREEDY): 0.3}
    for _ in range(400):
        for (source, params), right in laws.items():
            list(learn(found, rng, iter([chain(3, source)]), lambda *_, right=right: right, params))
    for (source, params), right in laws.items():
        assert estimates(found, chain(1, source), params)[0] == pytest.approx(right, abs=0.1)
    mixed = Draft((0, 0), (ROOT, 0), ("a", "b"))
    assert estimates(found, mixed)[0] > 0.8
    assert estimates(found, mixed)[1] < 0.4


def test_deep_nodes_learn_from_shallow_ones() -> None:
    found, rng = Calibration(), random.Random(4)
    list(learn(found, rng, (chain(2) for _ in range(500)), lambda *_: 0.85))
    assert estimates(found, chain(30))[-1] == pytest.approx(0.85, abs=0.08)
    assert len(set(estimates(found, chain(30))[DEPTHS:])) == 1


# ------------------------------------------------------------------------------------------------- who was judged


def test_only_nodes_below_accepted_ones_are_judged() -> None:
    """A tree: 0 and 1 below the root, 2 and 3 below 0, 4 below 1, 5 below 2."""
    found = Calibration()
    tree = Draft(tuple(range(6)), (ROOT, ROOT, 0, 0, 1, 2), ("tree",) * 6)
    draft = found.apply(tree, GREEDY)
    assert draft.probs is not None
    told = {
        (1, 7): ((1,), [0, 1, 4]),  # 1 was accepted, 4 was not
        (7,): ((), [0, 1]),
        (0, 3, 7): ((0, 3), [0, 1, 2, 3]),
        (0, 2, 5, 7): ((0, 2, 5), [0, 1, 2, 3, 5]),
        (0, 2): ((0, 2), [0, 1, 2, 3]),  # the request ended with 2: nothing was chosen after it
        (0,): ((0,), [0, 1]),
        (): ((), []),  # it failed at the root
    }
    for tokens, (path, judged) in told.items():
        answer = found.observe(draft, Verdict(tokens, path), GREEDY)
        assert answer == [(node, node in path) for node in judged]


def test_an_end_is_no_rejection() -> None:
    """Every node is accepted, and each request ends within its first draft."""
    found = Calibration()
    for _ in range(200):
        draft = found.apply(chain(4), GREEDY)
        found.observe(draft, Verdict((0, 0), (0, 1)), GREEDY)
    assert min(estimates(found, chain(2))) > 0.95


def test_a_cut_draft_keeps_what_it_learns_from() -> None:
    found = Calibration()
    draft = found.apply(chain(4, probs=[0.9, 0.8, 0.7, 0.6]), GREEDY).cut(2)
    assert draft.odds == pytest.approx((log_odds(0.9), log_odds(0.8)))
    assert len(found.observe(draft, Verdict((0, 0, 1), (0, 1)), GREEDY)) == 2
    assert found.apply(chain(0), GREEDY) == chain(0)


def test_a_chain_ends_where_too_little_is_promised() -> None:
    found = Calibration()
    whole = found.apply(chain(9, probs=[0.5] * 9), GREEDY)
    assert whole.probs is not None
    reached = [math.prod(whole.probs[: node + 1]) for node in range(9)]
    for least in (0.0, reached[4], reached[0], 1.0):
        cut = found.apply(chain(9, probs=[0.5] * 9), GREEDY, least)
        assert cut == whole.cut(max(sum(chance >= least for chance in reached), 1))
    tree = Draft((0, 1, 2), (ROOT, ROOT, 0), ("guess",) * 3)
    assert len(found.apply(tree, GREEDY, 1.0)) == 3


def test_what_is_known_well_is_refined_once_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first at once, so that nobody waits for what little there is."""
    found, rng, refined = Calibration(16), random.Random(8), []
    own = calibration._Model.refine
    monkeypatch.setattr(calibration._Model, "refine", lambda self: (refined.append(found.step), own(self)))
    for found.step in range(200):
        list(learn(found, rng, (chain(8) for _ in range(16)), lambda *_: 0.9))
    assert refined[:3] == [0, 0, 0]
    assert {after - before for before, after in itertools.pairwise(refined[4:])} == {16}


# ---------------------------------------------------------------------------------------------------------- a twin


def test_against_descent_to_the_very_end() -> None:
    """The slow twin: the same weights and the same prior, by gradient descent over single nodes."""
    found, rng = Calibration(), random.Random(5)
    nodes: list[tuple[float, int, bool]] = []
    while len(nodes) < 900:
        raw = chain(3, probs=[rng.uniform(0.2, 0.98) for _ in range(3)])
        verdict = judge(rng, raw, lambda prob, depth: 0.5 * (prob or 0) + 0.3 - 0.1 * depth)
        draft = found.apply(raw, GREEDY)
        judged = found.observe(draft, verdict, GREEDY)
        assert draft.odds is not None
        nodes += [(draft.odds[i], i, accepted) for i, (_, accepted) in enumerate(judged)]
    model = found._models["guess", False, False]
    kept = len(nodes) - len(model._judged)  # those not learnt from yet came last
    worth = model._worth.tolist()
    slope, intercept, depths = _descend(nodes[kept - len(worth) : kept], worth)
    for own in (0.2, 0.5, 0.8, 0.95):
        for depth, probability in enumerate(estimates(found, chain(3, probs=[own] * 3))):
            assert probability == pytest.approx(
                _sigmoid(slope * log_odds(own) + intercept + depths[depth]), abs=0.003
            )
    ages = [one for one in worth if one < 1]
    assert ages == sorted(ages)
    assert ages[0] < 0.1, "the oldest count for little"


def _descend(
    nodes: Sequence[tuple[float, int, bool]], worth: Sequence[float]
) -> tuple[float, float, tuple[float, ...]]:
    weights, prior, ridge = [0.5, -0.2, 0.0, 0.0, 0.0], [0.5, -0.2, 0.0, 0.0, 0.0], [1.0, 0.5, 1.0, 1.0, 1.0]
    for _ in range(1500):
        gradient = [r * (p - w) for r, p, w in zip(ridge, prior, weights, strict=True)]
        for (odds, depth, accepted), counts in zip(nodes, worth, strict=True):
            error = counts * (accepted - _sigmoid(weights[0] * odds + weights[1] + weights[2 + depth]))
            gradient[0] += error * odds
            gradient[1] += error
            gradient[2 + depth] += error
        weights = [w + 0.004 * g for w, g in zip(weights, gradient, strict=True)]
    return weights[0], weights[1], tuple(weights[2:])


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# --------------------------------------------------------------------------------------------------- hostile numbers


@given(
    st.lists(
        st.tuples(
            st.none() | st.lists(st.floats() | st.sampled_from([0.0, 1.0, 1 - 1e-16]), min_size=6, max_size=6),
            st.integers(0, 6),
            st.integers(0, 1),
        ),
        max_size=60,
    ),
    st.integers(1, 400),
)
def test_probabilities_stay_probabilities(turns: list[tuple[list[float] | None, int, int]], often: int) -> None:
    found = Calibration()
    for probs, accepted, more in turns * (often // (len(turns) + 1) + 1):
        draft = found.apply(chain(6, probs=probs), GREEDY)
        assert draft.probs is not None
        assert all(0 < p < 1 for p in draft.probs)
        found.observe(draft, Verdict((0,) * (accepted + more), tuple(range(accepted))), GREEDY)
    assert all(np.isfinite(model._weights).all() for model in found._models.values())
    assert [log_odds(p) for p in (math.nan, math.inf, -0.1, 1.1, 0.5)] == [0] * 5


def test_the_same_history_gives_the_same_bits() -> None:
    def history() -> tuple[float, ...]:
        found, rng = Calibration(), random.Random(6)
        list(learn(found, rng, (chain(5, probs=[0.7] * 5) for _ in range(300)), lambda *_: 0.6))
        return estimates(found, chain(5, probs=[0.7] * 5))

    assert history() == history()


def test_a_step_of_many_requests_is_learnt_from_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_WINDOW", 200)
    found, rng = Calibration(), random.Random(7)
    for _ in range(5):
        step = [found.apply(chain(4), GREEDY) for _ in range(100)]
        for draft in step:
            found.observe(draft, judge(rng, draft, lambda *_: 0.7), GREEDY)
        assert len(found._models["guess", False, False]._rows) in (0, 200)
    assert estimates(found, chain(1))[0] == pytest.approx(0.7, abs=0.1)


# ------------------------------------------------------------------------------------------------------ in an engine


@pytest.mark.parametrize("method", DRAFTING)
def test_every_proposers_drafts(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Every node has a probability, what is learnt comes true, and nobody's tokens depend on it."""
    rng = random.Random(8)
    prompts = [[rng.randrange(256) for _ in range(4)] * 4 for _ in range(24)]
    asks = [
        Ask(
            tuple(prompt),
            SamplingParams(temperature=(i % 2) * 0.7, seed=i, max_tokens=40, logprobs=0, ignore_eos=True),
        )
        for i, prompt in enumerate(prompts)
    ]
    plans: list[Plan] = []
    plan = Scheduler.plan

    def watched(self: Scheduler, now: float = 0.0) -> Plan:
        plans.append(plan(self, now))
        return plans[-1]

    monkeypatch.setattr(Scheduler, "plan", watched)
    llm = make_llm(method, 4)
    answers = run(llm, asks)
    nodes = 0
    for span in (span for plan in plans for span in plan.spans if span.draft):
        assert span.draft.probs is not None
        assert len(span.draft.probs) == len(span.draft)
        assert all(0 < p < 1 for p in span.draft.probs)
        nodes += len(span.draft)
    assert nodes > 100
    found = llm.engine.stats.reliability
    accepted = sum(answer.metrics.accepted for answer in answers)
    assert accepted <= sum(found.accepted) < sum(found.judged) <= nodes
    assert abs(sum(found.expected) - sum(found.accepted)) / sum(found.judged) < 0.12
    assert found.error < 0.2

    monkeypatch.setattr(Calibration, "apply", lambda self, draft, *_: replace(draft, probs=(0.5,) * len(draft)))
    assert list(map(essence, answers)) == list(map(essence, run(make_llm(method, 4), asks)))


def test_reliability_is_counted_in_bins() -> None:
    stats = EngineStats()
    stats.judge(("a",) * 3, (0,), [(0.25, True), (0.21, False), (0.999, True), (1e-9, False)])
    found = stats.reliability
    assert found.judged == [1, 0, 2, 0, 0, 0, 0, 0, 0, 1]
    assert found.accepted == [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert found.error == pytest.approx((0.54 + 0.001 + 1e-9) / 4)
    row = reported(found)
    assert row == {"nodes": 4, "expected": pytest.approx(1.459 / 4), "accepted": 0.5, "error": found.error}
    stats.reset()
    assert stats.reliability.error == 0
    assert reported(stats.reliability) is None
