"""What is believed of draft tokens: against known laws, of any numbers, and on the drafts of every proposer."""

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
from parlay.drafting.belief import DEPTHS, ENOUGH, Belief, SourceBelief, log_odds
from parlay.engine.scheduler import Scheduler
from parlay.engine.stats import EngineStats
from parlay.proposers.select import proposers
from parlay.types.draft import ROOT, Draft
from parlay.types.plan import Plan, Verdict

GREEDY, SAMPLED = SamplingParams(temperature=0), SamplingParams(temperature=0.7)
DRAFTING = [name for name in proposers.names() if drafts(name)]

# How likely a token is to be accepted, from its own estimate (None if there is none) and its depth, counted from 0.
Truth = Callable[[float | None, int], float]


def chain(length: int, source: str = "source", probs: Sequence[float] | None = None) -> Draft:
    return Draft.chain([0] * length, source, probs)


def verdict(rng: random.Random, draft: Draft, truth: Truth) -> Verdict:
    """Accept a chain's tokens up to the first that is not."""
    accepted = 0
    for depth in range(len(draft)):
        if rng.random() >= truth(draft.probs[depth] if draft.probs else None, depth):
            break
        accepted += 1
    return Verdict((0,) * accepted + (1,), tuple(range(accepted)))


def learn(
    belief: Belief, rng: random.Random, raws: Iterator[Draft], truth: Truth, params: SamplingParams = GREEDY
) -> list[Draft]:
    """Have one draft after another judged; return each as it was estimated before."""
    found = []
    for raw in raws:
        found.append(belief.apply(raw, params))
        belief.judge(found[-1], verdict(rng, raw, truth), params)
    return found


def estimates(belief: Belief, raw: Draft, params: SamplingParams = GREEDY) -> tuple[float, ...]:
    probs = belief.apply(raw, params).probs
    assert probs is not None
    return probs


def mean(drafts: Sequence[Draft], depth: int) -> float:
    return float(np.mean([d.probs[depth] for d in drafts if d.probs is not None and len(d) > depth]))


# -------------------------------------------------------------------------------------------------- known acceptance


def test_estimates_converge_to_the_acceptance_of_each_depth() -> None:
    truth = (0.9, 0.75, 0.6, 0.45)
    seen = learn(Belief(), random.Random(0), (chain(4) for _ in range(3000)), lambda _, depth: truth[depth])
    for depth in range(4):
        assert mean(seen[300:], depth) == pytest.approx(truth[depth], abs=0.04)
        assert float(np.std([d.probs[depth] for d in seen[300:] if d.probs is not None])) < 0.08


def test_a_jump_is_followed_within_200_drafts() -> None:
    belief, rng = Belief(), random.Random(1)
    for alpha, within in ((0.9, 0.1), (0.2, 0.25), (0.9, 0.2)):
        learn(belief, rng, (chain(5) for _ in range(200)), lambda *_, alpha=alpha: alpha)
        assert estimates(belief, chain(1))[0] == pytest.approx(alpha, abs=within)


@pytest.mark.parametrize("lengths", [(1, 1), (8, 8), (1, 8)], ids=str)
def test_draft_lengths_do_not_bias(lengths: tuple[int, int]) -> None:
    """Accepted / drafted of chains of 8 would be .46, not .8."""
    rng = random.Random(1)
    raws = (chain(rng.randint(*lengths)) for _ in range(2500))
    seen = learn(Belief(), rng, raws, lambda *_: 0.8)
    for depth in range(min(4, lengths[1])):
        assert mean(seen[200:], depth) == pytest.approx(0.8, abs=0.025)


def test_an_overconfident_proposer_is_toned_down() -> None:
    """Its log-odds are thrice what they should be, and too high by 1."""
    rng = random.Random(2)

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    def truth(prob: float | None, depth: int) -> float:
        assert prob is not None
        return sigmoid((math.log(prob / (1 - prob)) - 1) / 3)

    belief = Belief()
    raws = (chain(3, probs=[sigmoid(rng.uniform(-4, 4)) for _ in range(3)]) for _ in range(3000))
    learn(belief, rng, raws, truth)
    for own in (0.1, 0.5, 0.9, 0.97):
        assert estimates(belief, chain(1, probs=[own]))[0] == pytest.approx(truth(own, 0), abs=0.12)


def test_sources_and_temperatures_are_apart() -> None:
    belief, rng = Belief(), random.Random(3)
    truths = {("a", GREEDY): 0.9, ("a", SAMPLED): 0.5, ("b", GREEDY): 0.3}
    for _ in range(400):
        for (source, params), right in truths.items():
            learn(belief, rng, iter([chain(3, source)]), lambda *_, right=right: right, params)
    for (source, params), right in truths.items():
        assert estimates(belief, chain(1, source), params)[0] == pytest.approx(right, abs=0.1)
    mixed = estimates(belief, Draft((0, 0), (ROOT, 0), ("a", "b")))
    assert mixed[0] > 0.8 > 0.4 > mixed[1]


def test_deep_tokens_learn_from_shallow_ones() -> None:
    belief = Belief()
    learn(belief, random.Random(4), (chain(2) for _ in range(500)), lambda *_: 0.85)
    assert estimates(belief, chain(30))[-1] == pytest.approx(0.85, abs=0.08)
    assert len(set(estimates(belief, chain(30))[DEPTHS:])) == 1


# ------------------------------------------------------------------------------------------------- who was judged


def test_only_nodes_below_accepted_ones_are_judged() -> None:
    """A tree: 0 and 1 below the root, 2 and 3 below 0, 4 below 1, 5 below 2."""
    belief = Belief()
    draft = belief.apply(Draft(tuple(range(6)), (ROOT, ROOT, 0, 0, 1, 2), ("tree",) * 6), GREEDY)
    cases: dict[tuple[int, ...], tuple[tuple[int, ...], list[int]]] = {
        (1, 7): ((1,), [0, 1, 4]),  # 1 was accepted, 4 was not
        (7,): ((), [0, 1]),
        (0, 3, 7): ((0, 3), [0, 1, 2, 3]),
        (0, 2, 5, 7): ((0, 2, 5), [0, 1, 2, 3, 5]),
        (0, 2): ((0, 2), [0, 1, 2, 3]),  # the request ended with 2: nothing was chosen after it
        (0,): ((0,), [0, 1]),
        (): ((), []),  # it failed at the root
    }
    for tokens, (path, judged) in cases.items():
        found = belief.judge(draft, Verdict(tokens, path), GREEDY)
        assert found == [(node, node in path) for node in judged]


def test_an_end_is_no_rejection() -> None:
    """Every token is accepted, and each request ends within its first draft."""
    belief = Belief()
    for _ in range(200):
        belief.judge(belief.apply(chain(4), GREEDY), Verdict((0, 0), (0, 1)), GREEDY)
    assert min(estimates(belief, chain(2))) > 0.95


def test_a_cut_draft_keeps_what_is_learnt_from() -> None:
    belief = Belief()
    draft = belief.apply(chain(4, probs=[0.9, 0.8, 0.7, 0.6]), GREEDY).cut(2)
    assert draft.odds == pytest.approx((log_odds(0.9), log_odds(0.8)))
    assert len(belief.judge(draft, Verdict((0, 0, 1), (0, 1)), GREEDY)) == 2
    assert belief.apply(chain(0), GREEDY) == chain(0)


def test_a_chain_ends_where_too_little_is_promised() -> None:
    belief = Belief()
    whole = belief.apply(chain(9, probs=[0.5] * 9), GREEDY)
    assert whole.probs is not None
    reached = [math.prod(whole.probs[: node + 1]) for node in range(9)]
    for least in (0.0, reached[4], reached[0], 1.0):
        cut = belief.apply(chain(9, probs=[0.5] * 9), GREEDY, least)
        assert cut == whole.cut(max(sum(chance >= least for chance in reached), 1))
    tree = Draft((0, 1, 2), (ROOT, ROOT, 0), ("source",) * 3)
    assert len(belief.apply(tree, GREEDY, 1.0)) == 3


# ------------------------------------------------------------------------------------------- before drafts are made


def reached(source: SourceBelief, alpha: float, drafts: int, seed: int = 0, length: int = 3) -> SourceBelief:
    """Return it after so many drafts whose tokens are accepted with probability `alpha`."""
    rng = random.Random(seed)
    for _ in range(drafts):
        levels: list[bool] = []
        while len(levels) < length and all(levels):
            levels.append(rng.random() < alpha)
        source.reach(levels)
    return source


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_levels_come_near_what_is_true_and_change_within_a_hundred_drafts(alpha: float) -> None:
    source = reached(SourceBelief(), alpha, 2000)
    assert source.levels(3) == pytest.approx([alpha] * 3, abs=0.12)
    source.decay()
    assert reached(source, 1 - alpha, 100, seed=1).levels(1)[0] == pytest.approx(1 - alpha, abs=0.2)


def test_a_depth_that_was_never_reached_follows_its_parent() -> None:
    source = SourceBelief()
    for _ in range(50):
        source.reach([True])
    first, second, third = source.levels(3)
    assert first > second > third > 0.8
    assert source.levels(DEPTHS + 2)[DEPTHS:] == [source.levels(DEPTHS)[-1]] * 2


def test_what_an_earlier_run_has_learnt_holds_at_first() -> None:
    belief = Belief()
    reached(belief.of("head"), 0.8, 2000)
    learn(belief, random.Random(6), (chain(2, "ngram") for _ in range(300)), lambda *_: 0.9)
    later = Belief(belief.known)
    assert later.of("head").levels(3) == pytest.approx(belief.of("head").levels(3), abs=0.08)
    assert estimates(later, chain(1, "ngram"))[0] == pytest.approx(0.9, abs=0.1)
    assert later.of("head").enough
    later.of("head").reach([False])
    assert later.of("head").levels(1)[0] > 0.7
    assert reached(later.of("head"), 0.1, 300).levels(1)[0] < 0.3


def test_giving_up_takes_a_few_drafts_and_holds_in_the_next_run() -> None:
    source = SourceBelief()
    for _ in range(int(ENOUGH)):
        assert not source.enough
        source.reach([False])
    assert source.enough
    later = SourceBelief()
    later.recall(source.known)
    assert later.enough
    assert later.levels(1)[0] < 0.25


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
def test_probabilities_stay_probabilities(runs: list[tuple[list[float] | None, int, int]], often: int) -> None:
    belief = Belief()
    for probs, accepted, more in runs * (often // (len(runs) + 1) + 1):
        draft = belief.apply(chain(6, probs=probs), GREEDY)
        assert draft.probs is not None
        assert all(0 < p < 1 for p in draft.probs)
        belief.judge(draft, Verdict((0,) * (accepted + more), tuple(range(accepted))), GREEDY)
    assert [log_odds(p) for p in (math.nan, math.inf, -0.1, 1.1, 0.5)] == [0] * 5


@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=5), st.booleans()), max_size=60))
def test_levels_are_probabilities(drafts: list[tuple[list[bool], bool]]) -> None:
    source = SourceBelief()
    for levels, off in drafts:
        source.reach(levels)
        if off:
            source.decay()
        for low, high in zip(source.levels(4), source.levels(4, 1.0), strict=True):
            assert 0 <= low <= high <= 1


# ------------------------------------------------------------------------------------------------------ in an engine


@pytest.mark.parametrize("method", DRAFTING)
def test_every_proposers_drafts(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Every node has a probability, what is learnt comes true, and nobody's tokens depend on it."""
    rng = random.Random(8)
    prompts = [[rng.randrange(256) for _ in range(4)] * 4 for _ in range(12)]
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

    monkeypatch.setattr(Belief, "apply", lambda self, draft, *_: replace(draft, probs=(0.5,) * len(draft)))
    some = slice(4)  # at both temperatures
    assert list(map(essence, answers[some])) == list(map(essence, run(make_llm(method, 4), asks[some])))


def test_reliability_is_counted_in_bins() -> None:
    stats = EngineStats()
    stats.reliability.judge([(0.25, True), (0.21, False), (0.999, True), (1e-9, False)])
    found = stats.reliability
    assert found.judged == [1, 0, 2, 0, 0, 0, 0, 0, 0, 1]
    assert found.accepted == [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert found.error == pytest.approx((0.54 + 0.001 + 1e-9) / 4)
    row = reported([found])
    assert row == {"nodes": 4, "expected": pytest.approx(1.459 / 4), "accepted": 0.5, "error": found.error}
    stats.reset()
    assert stats.reliability.error == 0
    assert reported([stats.reliability]) is None
