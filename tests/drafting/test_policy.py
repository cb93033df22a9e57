"""Lengths follow measured cost and acceptance, what is left out still teaches, and what does not pay costs little."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from crossing import crossed
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay import SamplingParams
from parlay.drafting.belief import Belief
from parlay.drafting.budget import SHARE, ExplorationBudget
from parlay.drafting.cost import StepCost
from parlay.drafting.device_length import DeviceLength
from parlay.drafting.draft_cost import DraftCost
from parlay.drafting.drafting import Drafting
from parlay.drafting.goodput import choose
from parlay.drafting.host_budget import HostProposerBudget
from parlay.drafting.host_drafts import LoadedProposer
from parlay.drafting.policy import PlainStepSchedule, Policy
from parlay.drafting.state import DraftState, Outcome, Rows
from parlay.kv.pool import BlockPool
from parlay.kv.table import BlockTable
from parlay.proposers.base import HostProposer
from parlay.types.draft import Draft
from parlay.types.plan import NO_PROPOSAL, Plan, Span, StepOutput, StepTimes, Verdict

LENGTH = 8


def seconds_of(rows: int) -> float:
    return 0.010 * max(1 + 0.01 * rows, rows / 12)


def steps(seconds_of: Callable[[int], float] = seconds_of, most: int = 512) -> StepCost:
    """Return the cost of steps, as timed at start."""
    cost = StepCost(most)
    cost.learn([(rows, seconds_of(rows)) for rows in (1, 2, 4, 8, 16, 32)])
    return cost


class Ones(HostProposer):
    """Drafts ones, and says nothing of how sure it is."""

    def __init__(self) -> None:
        self.asked = 0
        self.spend: Callable[[], None] = lambda: None

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        pass

    def propose(self, request_id: int, budget: int) -> Draft:
        self.asked += 1
        self.spend()
        return Draft.chain([1] * budget, "ones")

    def forget(self, request_id: int) -> None:
        pass


@dataclass(eq=False)
class Endless:
    """A request as drafting sees it."""

    request_id: int
    table: BlockTable
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0))
    tenant: str = ""
    prompt_tokens: tuple[int, ...] = (7,)
    tokens: list[int] = field(default_factory=lambda: [7])
    output_tokens: list[int] = field(default_factory=list)
    computed: int = 0
    gap: int = 1
    remaining: int = 1 << 30
    longest: int = 16
    drafting: DraftState = field(default_factory=DraftState)


class Simulation:
    """Steps without a model: a draft token is right with a known probability, a step takes a known time."""

    def __init__(
        self,
        batch: int,
        *,
        noise: float = 0.0,
        learn: bool = True,
        fair: bool = False,
        seconds_of: Callable[[int], float] = seconds_of,
    ) -> None:
        self.seconds_of = seconds_of
        self.proposer = Ones()
        self.seconds = 0.0
        self.policy = Policy(steps(seconds_of) if learn else StepCost(512), fair=fair)
        methods = [LoadedProposer("ones", self.proposer, LENGTH)]
        self.drafting = Drafting(methods, policy=self.policy, clock=lambda: self.seconds)
        pool = BlockPool(batch, 16)
        self.requests = [Endless(i, BlockTable(pool)) for i in range(batch)]
        for request in self.requests:
            self.drafting.add(request)
            self.drafting.admit(request)
        self.rng = random.Random(7)
        self.noise = noise
        self.tokens = 0

    def spend(self, seconds: float) -> None:
        self.seconds += seconds

    def step(self, alpha: float, asking: float = 0.0, *, waiting: bool = False) -> list[int]:
        """Run a step in which asking takes so many seconds a time; return the lengths of its drafts."""
        batch = len(self.requests)
        self.proposer.spend = lambda: self.spend(asking)
        began = self.seconds
        drafts = self.drafting.plan([(r, Rows(1, 0)) for r in self.requests], 512 - batch, 512, waiting=waiting)
        spans, verdicts = [], []
        for request, part in zip(self.requests, drafts.parts, strict=True):
            spans.append(Span(request.request_id, (7,), 0, (), 0, request.params, draft=part.draft, sample=True))
            right = 0
            while right < LENGTH and self.rng.random() < alpha:
                right += 1
            right = min(right, len(part.draft))
            # After a wrong draft token comes something else; after the last, what would have been drafted or not.
            last = 1 if right == len(part.draft) and self.rng.random() < alpha else 2
            verdicts.append(Verdict((1,) * right + (last,), tuple(range(right))))
            self.tokens += right + 1
        rows = batch + sum(len(span.draft) for span in spans)
        took = self.seconds_of(rows) * self.rng.uniform(1 - self.noise, 1 + self.noise)
        self.seconds += took
        parts = zip(self.requests, spans, verdicts, strict=True)
        outcomes = [Outcome(request, span, verdict, NO_PROPOSAL, False) for request, span, verdict in parts]
        output = StepOutput(0, tuple(verdicts), (NO_PROPOSAL,) * batch)
        self.drafting.learn(drafts, Plan(0, tuple(spans)), output, outcomes, lambda: self.seconds - began)
        return [len(span.draft) for span in spans]

    def rate(self, alpha: float, count: int, asking: float = 0.0) -> float:
        """Return the tokens per second of the next steps."""
        self.tokens, self.seconds = 0, 0.0
        for _ in range(count):
            self.step(alpha, asking)
        return self.tokens / self.seconds


def expected_rate(alpha: float, batch: int, length: int) -> float:
    return batch * sum(alpha**i for i in range(length + 1)) / seconds_of(batch * (1 + length))


# ------------------------------------------------------------------------------------------ proposers on the host


@crossed(batch=(1, 8, 32), alpha=(0.1, 0.5, 0.9))
def test_it_comes_near_the_best_fixed_length(alpha: float, batch: int) -> None:
    """And never below plain decoding, from the very first steps on."""
    run = Simulation(batch, noise=0.1)
    assert run.rate(alpha, 60) > 0.97 * expected_rate(alpha, batch, 0)
    assert run.rate(alpha, 600) > 0.95 * max(expected_rate(alpha, batch, k) for k in range(LENGTH + 1))


def test_a_jump_of_acceptance_is_followed() -> None:
    run = Simulation(8)
    for alpha in (0.9, 0.2, 0.9):
        run.rate(alpha, 600)
        best = max(expected_rate(alpha, 8, k) for k in range(LENGTH + 1))
        assert run.rate(alpha, 200) > 0.95 * best


def test_what_never_pays_costs_half_a_per_cent() -> None:
    run = Simulation(4)
    run.rate(0.02, 400, 200e-6)
    run.proposer.asked = 0
    lengths = [sum(run.step(0.02, 200e-6)) for _ in range(2000)]
    assert sum(map(bool, lengths)) <= 2000 // 64
    assert 0.5 * SHARE < run.proposer.asked * 200e-6 / (2000 * seconds_of(4)) < 1.1 * SHARE


def test_a_batch_comes_back_whose_requests_pay_only_together() -> None:
    """A step that is longer for one request's draft slows down all others; the drafts of all make up for it."""
    run = Simulation(8, seconds_of=lambda rows: 0.01 + 0.001 * rows)
    run.rate(0.02, 300, 100e-6)
    assert not run.policy.host_budget.affords(8)
    back = next((step for step in range(1000) if sum(run.step(0.9, asking=100e-6)) >= 8), 1000)
    assert back < 200
    assert run.rate(0.9, 200, 100e-6) > 1.35 * 8 / run.seconds_of(8)


@pytest.mark.parametrize("before", [20, 2000])
def test_a_machine_on_which_rows_no_longer_are_cheap_is_noticed(before: int) -> None:
    """As when memory has become faster, beside which rows cost more: no step has drafts that could do without, and
    the steps that are run without them, to see what these cost, are few. They have to count."""
    run = Simulation(8, noise=0.05, seconds_of=lambda rows: 0.0095 + 0.00125 * rows)
    for _ in range(before):
        run.step(0.8)
    assert sum(sum(run.step(0.8)) for _ in range(50)) > 200
    run.seconds_of = lambda rows: 0.00095 * rows
    run.rate(0.8, 300)
    assert run.rate(0.8, 300) > 0.98 * 8 / run.seconds_of(8)


def test_without_passes_timed_at_start_it_learns_from_steps() -> None:
    assert Simulation(1, learn=False).rate(0.9, 50) > 0.97 * expected_rate(0.9, 1, 0)


def test_the_time_of_asking_is_no_part_of_what_rows_cost() -> None:
    """Some steps have it and others do not, of as many rows: whatever is chosen then, it is spent."""
    run = Simulation(1)
    for _ in range(200):
        run.step(0.9, asking=0.004)
    assert run.proposer.asked > 100
    for rows, (seconds, _) in run.policy.cost.known.items():
        assert seconds == pytest.approx(seconds_of(rows), rel=0.02)


def test_few_steps_that_need_no_drafting_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    run, timed = Simulation(4), 0
    real = Policy.timed

    def counting(self: Policy, *given: Any, **more: Any) -> None:
        nonlocal timed
        timed += 1
        real(self, *given, **more)

    monkeypatch.setattr(Policy, "timed", counting)
    run.rate(0.0, 3000, 20e-6)
    timed, drafted = 0, 0
    for _ in range(2000):
        drafted += any(run.step(0.0, 20e-6))
    assert timed <= 2000 / 8 + drafted + 20


@pytest.mark.parametrize(("waiting", "latency", "fair"), [(0, 0, 1), (1, 0, 0), (1, 1, 1)])
def test_what_drafts_gain_is_counted_as_lengths_are_chosen(waiting: bool, latency: bool, fair: bool) -> None:
    """Tokens for one of two requests: by the geometric mean while none waits, and with `latency` always."""
    run = Simulation(2, fair=latency)
    found: list[float] = []
    run.policy.host_budget.gain = found.append  # type: ignore[method-assign]
    drafts = run.drafting.plan([(r, Rows(1, 0)) for r in run.requests], 100, 512, waiting=waiting)
    outcomes = []
    for request, part, right in zip(run.requests, drafts.parts, (1, 0), strict=True):
        right *= len(part.draft)
        span = Span(request.request_id, (7,), 0, (), 0, request.params, draft=part.draft, sample=True)
        verdict = Verdict((1,) * right + (2,), tuple(range(right)))
        outcomes.append(Outcome(request, span, verdict, NO_PROPOSAL, False))
    plan = Plan(0, tuple(one.span for one in outcomes))
    output = StepOutput(0, tuple(one.verdict for one in outcomes), (NO_PROPOSAL,) * 2)
    run.drafting.learn(drafts, plan, output, outcomes, lambda: 0.01)
    n = len(outcomes[0].span.draft)
    assert n > 0
    assert found[-1] == pytest.approx(run.policy.plain * ((1 + n) ** 0.5 - 1 if fair else n / 2))


# ---------------------------------------------------------------------------------------------------------- asking


STEP, ASK = 1e-3, 20e-6


def asked(asking: HostProposerBudget, count: int, gain: float, requests: int = 1) -> int:
    """Run steps in each of which some requests may be asked for; a draft saves `gain`. Return how often they were."""
    found = 0
    for _ in range(count):
        asking.save(STEP)
        if asking.affords(requests):
            asking.spend(requests * ASK, requests)
            asking.gain(requests * gain)
            found += 1
    return found


def test_what_pays_is_always_asked_and_an_end_of_it_is_noticed() -> None:
    asking = HostProposerBudget()
    assert asked(asking, 5000, 2 * ASK) == 5000
    asked(asking, 3000, 0.0)
    assert asked(asking, 1000, 0.0) < 300


@pytest.mark.parametrize("requests", [1, 32])
@pytest.mark.parametrize("gain", [0.0, -2 * ASK])
def test_what_never_pays_is_asked_as_the_budget_allows_and_comes_back(requests: int, gain: float) -> None:
    asking = HostProposerBudget()
    asked(asking, 1000, gain, requests)
    assert asked(asking, 20_000, gain, requests) * requests * ASK < 1.05 * SHARE * 20_000 * STEP
    asked(asking, 1000, 50 * ASK, requests)
    assert asked(asking, 100, 2 * ASK, requests) == 100


def test_a_process_that_was_stopped_changes_little() -> None:
    asking = HostProposerBudget()
    asked(asking, 1000, 1.5 * ASK)
    asking.spend(3600.0, 1)
    assert asked(asking, 2000, 1.5 * ASK) > 1900


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-10, 10)), max_size=100))
def test_a_budget_never_holds_or_owes_more_than_it_may(changes: list[tuple[float, float]]) -> None:
    budget = ExplorationBudget()
    for room, change in changes:
        budget.hold(room, room / 2)
        budget.add(change)
        assert -room / 2 <= budget.balance <= room


# ---------------------------------------------------------------------------------------------- device proposers


def ahead_of(cost: StepCost, belief: Belief | None = None, drafting: DraftCost | None = None) -> DeviceLength:
    return DeviceLength("head", cost, belief or Belief(), drafting)


@pytest.mark.parametrize("branches", [1, 3])
def test_a_device_proposers_length_follows_what_drafting_costs(branches: int) -> None:
    """And what its nodes cost, of which there may be several at each depth."""
    for each, pays in ((0.0002, True), (0.004, True), (0.05, False)):
        cost = steps()
        ahead, rng, lengths = ahead_of(cost), random.Random(3), []
        for _ in range(400):
            length = ahead.choose(LENGTH, 1, 1, 0)
            lengths.append(length)
            rows = 1 + branches * length
            cost.observe(rows, 0, seconds_of(rows))
            if length:
                ahead.timed(length, 1, each * length, 0, typical=True)
            accepted: list[bool] = []
            while len(accepted) < length and (not accepted or accepted[-1]):
                accepted.append(rng.random() < 0.8)
            ahead.judged(accepted, max(length, 1), branches * length)
        tail = lengths[200:]
        if pays:
            best = max(
                range(LENGTH + 1),
                key=lambda k: sum(0.8**i for i in range(k + 1)) / (seconds_of(1 + branches * k) + each * k),
            )
            assert abs(sorted(tail)[len(tail) // 2] - best) <= 1
        else:
            assert sum(map(bool, tail)) <= 6, "it is tried again now and then, and no more"
            assert any(lengths[:100])


@pytest.mark.parametrize(("colder", "hosts", "pays"), [(1.0, 1.0, True), (1.0, 1.9, False), (2.0, 1.0, False)])
def test_a_device_proposer_is_off_where_the_rest_is_faster(colder: float, hosts: float, pays: bool) -> None:
    """Steps right behind its drafts take longer than others, and drafts of the host's proposers may do as well."""
    cost = steps(lambda rows: 0.001 * (1 + 0.01 * rows))
    ahead, lengths = ahead_of(cost), []
    for _ in range(400):
        length = ahead.choose(4, 1, 1, 0)
        lengths.append(length)
        ahead.observe_hosts(hosts)
        if length:
            ahead.verified(1 + length, 0, colder * 0.001 * (1 + 0.01 * (1 + length)))
            ahead.timed(length, 1, 0.0002 * length, 0, typical=True)
            ahead.judged([True, False], length, length)
        else:
            cost.observe(1, 0, 0.00101)
    assert (sum(map(bool, lengths[200:])) > 190) == pays
    assert cost.pace * cost.table[1] == pytest.approx(0.00101, rel=0.02)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.floats(-1, 100)), max_size=40))
def test_any_times_give_a_length(times: list[tuple[int, int, float]]) -> None:
    cost = StepCost(64)
    ahead = ahead_of(cost)
    for length, count, seconds in times:
        cost.observe(1 + length, 0, seconds)
        ahead.timed(length, count, seconds, 0, typical=True)
        assert 0 <= ahead.choose(LENGTH, 2, 2, 10) <= LENGTH


def test_trials_cost_no_more_than_the_share_of_the_time() -> None:
    """And come in runs: a single one would tell little."""
    cost = steps(lambda rows: 0.010)
    ahead, lengths = ahead_of(cost), []
    for _ in range(40):
        ahead.timed(1, 1, 0.004, 0, typical=True)
    for _ in range(4000):
        lengths.append(ahead.choose(4, 1, 1, 0, behind=0))
        if lengths[-1]:
            ahead.judged([False], lengths[-1], lengths[-1])
    late = lengths[1000:]
    assert 0 < sum(map(bool, late)) * 0.004 < 2 * SHARE * 3000 * 0.010, "what a trial is likely to save is not lost"
    assert any(all(late[i : i + 4]) for i in range(len(late)))


def test_the_next_run_knows_that_a_proposer_does_not_pay() -> None:
    saved: list[Any] = []
    cost = steps(lambda rows: 0.010 * rows)
    ahead, at = ahead_of(cost), []
    policy = Policy(
        cost, device_length=ahead, keep=lambda own: saved.append(own.device_length and own.device_length.belief.known)
    )
    for _ in range(3):
        ahead.timed(1, 1, 0.01, 0, typical=True)
    for step in range(1, 300):
        ahead.judged([False], 1, 1)
        before = len(saved)
        policy.timed(1, 0, 0.01)
        if len(saved) > before:
            at.append(step)
    assert at == [64, 128, 256], "soon, and then after each doubling"
    later = ahead_of(steps(lambda rows: 0.010 * rows), Belief({"head": saved[0]}), DraftCost(ahead.cost.known))
    assert [later.choose(1, 1, 1, 0) for _ in range(20)].count(1) <= 7, "trials alone"


# ------------------------------------------------------------------------------------------------------- measuring


@pytest.mark.parametrize("length", [1, 4])
def test_measuring_becomes_rare_until_a_surprise(length: int) -> None:
    measuring, begun = PlainStepSchedule(length), []
    for step in range(1200 * length):
        before = measuring.left
        measuring.step(drafted=not before)
        if measuring.left > before:
            begun.append(step)
            assert measuring.left == length
    gaps = [after - before for before, after in pairwise(begun)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 20
    assert gaps[-1] >= 128 * length
    measuring.reset()
    assert any(measuring.step(drafted=True) or measuring.left for _ in range(9))


def test_plain_steps_that_seem_dear_are_run_and_seen_to_be_cheap() -> None:
    """With the wrong cost every step would have a draft, and none would say what a step without one takes."""
    cost = StepCost(64)
    cost.recall({1: (1.0, 8), 8: (3.6, 400), 12: (2.5, 400)})
    policy, dear = Policy(cost), cost.table[12] / cost.table[8]
    for _ in range(400):
        policy.begin(8, 8, 0)
        drafted = sum(map(len, policy.choose([[0.3]] * 4, 8, 8, 0))) if policy.may_draft else 0
        policy.timed(8 + drafted, 0, 1.7 if not drafted else 2.5)
    assert dear < 1.1 < 1.3 < cost.table[12] / cost.table[8]
    assert not any(policy.choose([[0.3]] * 4, 8, 8, 0))


@crossed(
    wrong=[
        {3: 53.0, 4: 39.0, 32: 25.0},
        {2: 30.0, 4: 40.0, 8: 60.0},
        {3: 11.0, 4: 12.0},
        {2: 11.0, 4: 25.0, 8: 60.0, 16: 130.0, 32: 300.0},  # as where no draft token could pay
    ],
    scale=(1.0, 0.0005),
)
def test_steps_that_once_were_slow_are_run_again(wrong: dict[int, float], scale: float) -> None:
    """What a stopped process or a busy machine has left, also in an earlier run, must not end drafts for good."""

    def seconds(rows: int) -> float:
        return scale * (4.8 + 0.2 * rows)

    cost = StepCost(64)
    cost.recall({1: (seconds(1), 8), **{rows: (scale * slow, 8) for rows, slow in wrong.items()}})
    policy, chances, sizes = Policy(cost), [0.7**depth for depth in range(1, 9)], []
    for _ in range(6000):
        policy.begin(1, 1, 0)
        sizes.append(len(policy.choose([chances], 1, 1, 0)[0]) if policy.may_draft else 0)
        policy.timed(1 + sizes[-1], 0, seconds(1 + sizes[-1]), drafted=sizes[-1] > 0)
    best = choose([chances], 1, 1, [0.0, *map(seconds, range(1, 65))])[0]
    assert sum(sizes[-100:]) >= 100 * (len(best) - 1)


def test_rows_that_are_slow_are_run_seldom() -> None:
    """To see whether they still are; the budget bounds what that costs."""
    cost = StepCost(64)
    cost.recall({1: (5.0, 8), 2: (20.0, 8), 4: (40.0, 8)})
    policy, spent, steps = Policy(cost), 0.0, 20_000
    for _ in range(steps):
        policy.begin(1, 1, 0)
        rows = 1 + len(policy.choose([[0.3, 0.1, 0.05]], 1, 1, 0)[0])
        policy.timed(rows, 0, {1: 5.0, 2: 20.0, 4: 40.0}[rows], drafted=rows > 1)
        spent += {1: 0.0, 2: 15.0, 4: 35.0}[rows]
    assert 0 < spent <= 0.0055 * 5.0 * steps


@pytest.mark.parametrize(("seconds", "least"), [(0.001, 1.05), (0.02, 1.5)])
def test_short_steps_between_drafts_do_not_make_plain_ones_seem_slow(seconds: float, least: float) -> None:
    """Drafting evicts what weights the caches hold; those of a long step never were there."""
    cost = StepCost(64)
    cost.learn([(1, seconds), (4, 1.5 * seconds)])
    policy = Policy(cost)
    for step in range(400):
        policy.begin(1, 1, 0)
        idle_steps = step % 4
        policy.timed(1, 0, 1.7 * seconds, StepTimes(forward=1.6 * seconds, idle_steps=idle_steps), drafted=False)
    assert least * seconds <= cost.pace * cost.table[1] <= (least + 0.25) * seconds
    for _ in range(200):  # a long time without drafts tells what plain steps take
        policy.begin(1, 1, 0)
        policy.timed(1, 0, 1.3 * seconds, StepTimes(forward=1.2 * seconds), drafted=False)
    assert cost.pace * cost.table[1] == pytest.approx(1.3 * seconds, rel=0.05)


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, False), (0.02, True)])
def test_drafts_branch_where_steps_are_long_enough(seconds: float, expected: bool) -> None:
    policy = Policy(steps(lambda rows: seconds * (1 + rows / 8), 64))
    assert not policy.branches, "nothing is known yet"
    policy.begin(1, 1, 0)
    assert policy.branches is expected
