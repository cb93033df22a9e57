"""Lengths follow measured cost and acceptance, and what is left out still teaches."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay import SamplingParams
from parlay.drafting.controller import Controller
from parlay.drafting.cost import StepCost
from parlay.drafting.drafting import Drafting
from parlay.drafting.hosts import Method
from parlay.drafting.state import DraftState
from parlay.kv.pool import BlockPool
from parlay.kv.table import BlockTable
from parlay.proposers.base import HostProposer
from parlay.types.draft import Draft
from parlay.types.plan import Plan, Span, StepOutput, Verdict

LENGTH = 8


def seconds_of(rows: int) -> float:
    return 0.010 * max(1 + 0.01 * rows, rows / 12)


class Ones(HostProposer):
    """Guesses ones, and says nothing of how sure it is."""

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
    tokens: list[int] = field(default_factory=lambda: [7])
    output_tokens: list[int] = field(default_factory=list)
    computed: int = 0
    remaining: int = 1 << 30
    drafting: DraftState = field(default_factory=DraftState)


class Simulation:
    """Steps without a model: a guess is right with a known probability, a step takes a known time."""

    def __init__(
        self,
        batch: int,
        *,
        noise: float = 0.0,
        learn: bool = True,
        fair: bool = False,
        seconds_of: Callable[[int], float] = seconds_of,
    ) -> None:
        cost = StepCost(512)
        self.seconds_of = seconds_of
        if learn:
            cost.learn([(rows, seconds_of(rows)) for rows in (1, 2, 4, 8, 16, 32)])
        self.proposer = Ones()
        methods = [Method("ones", self.proposer, LENGTH)]
        self.seconds = 0.0
        self.drafting = Drafting(methods, controller=Controller(cost, LENGTH, fair=fair), clock=lambda: self.seconds)
        pool = BlockPool(1, 16)
        self.requests = [Endless(i, BlockTable(pool)) for i in range(batch)]
        for request in self.requests:
            self.drafting.add(request)
            self.drafting.admit(request)
        self.rng = random.Random(7)
        self.noise = noise
        self.tokens = self.plain = 0

    def spend(self, seconds: float) -> None:
        self.seconds += seconds

    def step(self, alpha: float, asking: float = 0.0) -> list[int]:
        """Run a step in which asking takes so many seconds a time; return the lengths of its drafts."""
        batch = len(self.requests)
        self.proposer.spend = lambda: self.spend(asking)
        began = self.seconds
        self.drafting.prepare(self.requests, batch, batch, 0, 512 - batch)
        spans, verdicts = [], []
        for request in self.requests:
            offer = self.drafting.draft(request, len(request.tokens), 512, 512)
            spans.append(Span(request.request_id, (7,), 0, (), 0, request.params, draft=offer.draft, sample=True))
            right = 0
            while right < LENGTH and self.rng.random() < alpha:
                right += 1
            right = min(right, len(offer.draft))
            # After a guess that was wrong comes something else; after the last, what would have been guessed or not.
            last = 1 if right == len(offer.draft) and self.rng.random() < alpha else 2
            verdicts.append(Verdict((1,) * right + (last,), tuple(range(right))))
            self.tokens += right + 1
        rows = batch + sum(len(span.draft) for span in spans)
        took = self.seconds_of(rows) * self.rng.uniform(1 - self.noise, 1 + self.noise)
        self.seconds += took
        for request, span, verdict in zip(self.requests, spans, verdicts, strict=True):
            self.drafting.observe(request, span, verdict, verdict.tokens)
        self.drafting.timed(Plan(0, tuple(spans)), StepOutput(0, tuple(verdicts), ()), self.seconds - began)
        return [len(span.draft) for span in spans]


def expected_rate(alpha: float, batch: int, length: int) -> float:
    return batch * sum(alpha**i for i in range(length + 1)) / seconds_of(batch * (1 + length))


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_it_comes_near_the_best_fixed_length(alpha: float, batch: int) -> None:
    """And never below plain decoding, from the very first steps on."""
    run = Simulation(batch, noise=0.1)
    for _ in range(60):
        run.step(alpha)
    assert run.tokens / run.seconds > 0.97 * expected_rate(alpha, batch, 0)
    run.tokens, run.seconds = 0, 0.0
    for _ in range(600):
        run.step(alpha)
    best = max(expected_rate(alpha, batch, k) for k in range(LENGTH + 1))
    assert run.tokens / run.seconds > 0.95 * best


def test_a_jump_of_acceptance_is_followed() -> None:
    run = Simulation(8)
    settled = {}
    for alpha in (0.9, 0.2, 0.9):
        for step in range(600):
            lengths = run.step(alpha)
            if step == 200:
                settled[alpha] = sum(lengths)
        best = max(range(LENGTH + 1), key=lambda k: expected_rate(alpha, 8, k))
        run.tokens, run.seconds = 0, 0.0
        for _ in range(200):
            run.step(alpha)
        assert run.tokens / run.seconds > 0.95 * expected_rate(alpha, 8, best)
    assert settled[0.2] < settled[0.9]


def test_what_never_pays_is_seldom_asked_for() -> None:
    run = Simulation(4)
    for _ in range(200):
        run.step(0.02)
    run.proposer.asked = 0
    lengths = [sum(run.step(0.02)) for _ in range(320)]
    assert sum(map(bool, lengths)) <= 320 // 64, "what rows cost is looked at now and then, and no more"
    assert run.proposer.asked <= 4 * 320 / 12


def test_it_comes_back_although_nothing_is_verified() -> None:
    """Guesses that are left out are judged by what comes instead."""
    run = Simulation(4)
    for _ in range(300):
        run.step(0.02)
    back = next(step for step in range(1000) if sum(run.step(0.95)) > 8)
    assert back < 200


def test_a_batch_comes_back_whose_requests_pay_only_together() -> None:
    """A step that is longer for one request's draft slows down all others; the drafts of all make up for it."""
    run = Simulation(8, seconds_of=lambda rows: 0.01 + 0.001 * rows)
    for _ in range(300):
        run.step(0.02, asking=100e-6)
    assert not run.drafting._account.pays
    back = next((step for step in range(1000) if sum(run.step(0.9, asking=100e-6)) >= 8), 1000)
    assert back < 200
    run.tokens, run.seconds = 0, 0.0
    for _ in range(200):
        run.step(0.9, asking=100e-6)
    assert run.tokens / run.seconds > 1.35 * 8 / run.seconds_of(8)


def test_a_step_full_of_prompts_does_not_end_tries() -> None:
    """It has no room for drafts, so that nothing is known of its like without; saving goes on all the same."""
    run = Simulation(8)
    for _ in range(300):
        run.step(0.02, asking=100e-6)
    run.requests[0].drafting.lucky = True
    run.drafting._account._saved = 0.0
    run.drafting.prepare(run.requests, 8, 512, 0, 0)
    run.requests[0].drafting.lucky = False
    assert next((step for step in range(1000) if sum(run.step(0.9, asking=100e-6)) >= 8), 1000) < 200


@pytest.mark.parametrize("before", [20, 4000])
def test_a_machine_on_which_rows_no_longer_are_cheap_is_noticed(before: int) -> None:
    """As when memory has become faster, beside which rows cost more: no step has drafts that could do without, and
    the steps that are run without them, to see what these cost, are few. They have to count."""
    run = Simulation(8, noise=0.05, seconds_of=lambda rows: 0.0095 + 0.00125 * rows)
    for _ in range(before):
        run.step(0.8)
    assert sum(sum(run.step(0.8)) for _ in range(50)) > 200
    run.seconds_of = lambda rows: 0.00095 * rows
    for _ in range(300):
        run.step(0.8)
    run.tokens, run.seconds = 0, 0.0
    for _ in range(300):
        run.step(0.8)
    assert run.tokens / run.seconds > 0.98 * 8 / run.seconds_of(8)


def test_without_passes_timed_at_start_it_learns_from_steps() -> None:
    run = Simulation(1, learn=False)
    for _ in range(50):
        run.step(0.9)
    assert run.tokens / run.seconds > 0.97 * expected_rate(0.9, 1, 0)


def test_the_time_of_asking_is_no_part_of_what_rows_cost() -> None:
    """Some steps have it and others do not, of as many rows: whatever is chosen then, it is spent."""
    run = Simulation(1)
    for _ in range(200):
        run.step(0.9, asking=0.004)
    assert run.proposer.asked > 100
    assert run.drafting.controller is not None
    for rows, (seconds, _) in run.drafting.controller.cost.known.items():
        assert seconds == pytest.approx(seconds_of(rows), rel=0.02)


def test_few_steps_that_need_no_drafting_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at what rows cost is one step long, whatever comes after it."""
    run, timed = Simulation(4), 0
    real = Controller.timed

    def counting(self: Controller, *given: Any) -> None:
        nonlocal timed
        timed += 1
        real(self, *given)

    monkeypatch.setattr(Controller, "timed", counting)
    for _ in range(3000):
        run.step(0.0)
    timed, drafted = 0, 0
    for _ in range(2000):
        drafted += any(run.step(0.0))
    assert timed <= 2000 / 8 + drafted + 20


def test_what_guesses_gain_is_counted_as_lengths_are_chosen() -> None:
    """Three tokens for one of two requests make both twice as fast by the geometric mean, which counts while none
    waits and with `latency` always."""
    for waiting, latency, gained in ((False, False, 1.0), (True, False, 1.5), (True, True, 1.0)):
        run = Simulation(2, fair=latency)
        run.drafting.prepare(run.requests, 2, 2, 0, 100, waiting=waiting)
        control, account = run.drafting.controller, run.drafting._account
        assert control is not None
        spans, outputs = [], []
        for request, right in zip(run.requests, (3, 0), strict=True):
            offer = run.drafting.draft(request, 1, 512, 512)
            spans.append(Span(request.request_id, (7,), 0, (), 0, request.params, draft=offer.draft, sample=True))
            outputs.append(Verdict((1,) * right + (2,), tuple(range(right))))
            run.drafting.observe(request, spans[-1], outputs[-1], outputs[-1].tokens)
        balance = account._balance
        run.drafting.timed(Plan(0, tuple(spans)), StepOutput(0, tuple(outputs), ()), 0.01)
        assert account._balance - balance == pytest.approx(gained * control.plain)


# ---------------------------------------------------------------------------------------------- device proposers


@pytest.mark.parametrize("branches", [1, 3])
def test_a_device_proposers_length_follows_what_drafting_costs(branches: int) -> None:
    """And what its nodes cost, of which there may be several at each depth."""
    for each, most in ((0.0002, LENGTH), (0.004, LENGTH - 1), (0.05, 0)):
        cost = StepCost(512)
        cost.learn([(rows, seconds_of(rows)) for rows in (1, 2, 4, 8, 16, 32)])
        control = Controller(cost, LENGTH)
        rng, lengths = random.Random(3), []
        for _ in range(400):
            length = control.next_length(LENGTH, 1, 1, 0)
            lengths.append(length)
            rows = 1 + branches * length
            control.timed(rows, 0, seconds_of(rows), [length], each * length)
            accepted: list[bool] = []
            while len(accepted) < length and (not accepted or accepted[-1]):
                accepted.append(rng.random() < 0.8)
            control.judged(accepted, length, branches * length)
        tail = lengths[200:]
        if most:
            best = max(
                range(LENGTH + 1),
                key=lambda k: sum(0.8**i for i in range(k + 1)) / (seconds_of(1 + branches * k) + each * k),
            )
            assert abs(sorted(tail)[len(tail) // 2] - best) <= 1
        else:
            assert sum(map(bool, tail)) <= 4, "it is tried again now and then, and no more"
            assert any(lengths[:100])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-1, 100)), max_size=40))
def test_any_times_give_a_length(times: list[tuple[int, float]]) -> None:
    control = Controller(StepCost(64), LENGTH)
    for length, seconds in times:
        control.timed(1 + length, 0, seconds, [length], seconds)
        assert 0 <= control.next_length(LENGTH, 2, 2, 10) <= LENGTH


def test_plain_steps_that_seem_dear_are_run_and_seen_to_be_cheap() -> None:
    """With the wrong cost every step would have a draft, and none would say what a step without one takes."""
    cost = StepCost(64)
    cost.recall({1: (1.0, 8), 8: (9.0, 400), 12: (2.5, 400)})
    control = Controller(cost, 5)
    dear = cost.table[12] / cost.table[8]
    for _ in range(400):
        drafted = 0
        if control.asks(8, 8, 0):
            drafted = sum(map(len, control.choose([[0.3]] * 4, 8, 8, 0)))
        control.timed(8 + drafted, 0, 1.7 if not drafted else 2.5, [], 0.0)
    assert dear < 1.1 < 1.3 < cost.table[12] / cost.table[8]
    assert not any(control.choose([[0.3]] * 4, 8, 8, 0))


def test_prompts_in_between_do_not_put_off_a_plain_step() -> None:
    """A batch whose drafts are verified in a few steps between prompts would else never have one."""
    cost = StepCost(64)
    cost.learn([(1, 1.0), (8, 1.1)])
    control, drafted = Controller(cost, 5), []
    for step in range(64):
        if step % 4 == 3:
            control.asks(0, 32, 0)
            continue
        control.asks(1, 1, 0)
        drafted.append(any(control.choose([[0.9, 0.8]], 1, 1, 0)))
    assert drafted.index(False) == 8
    assert 2 <= drafted.count(False) <= 3


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, False), (0.02, True)])
def test_drafts_branch_where_steps_are_long_enough(seconds: float, expected: bool) -> None:
    cost = StepCost(64, 0.0)
    cost.learn([(1, seconds), (8, 2 * seconds)])
    control = Controller(cost, 5)
    assert not control.branches, "nothing is known yet"
    control.asks(1, 1, 0)
    assert control.branches is expected


def test_what_is_known_is_saved_soon_and_then_after_each_doubling() -> None:
    """A short run is enough for the next one to know that a proposer does not pay."""
    saved: list[list[float]] = []
    keep = lambda cost, lengths: saved.append(lengths.acceptance.known)  # noqa: E731
    control, steps = Controller(StepCost(64), 1, keep=keep), []
    for step in range(1, 300):
        control.judged([False], 1, 1)
        before = len(saved)
        control.timed(1, 0, 0.01, [], 0.0)
        if len(saved) > before:
            steps.append(step)
    assert steps == [64, 128, 256]
    assert saved[0] == [pytest.approx(0.0, abs=0.01)]
    cost = StepCost(64)
    cost.learn([(1, 0.01), (2, 0.011)])
    later = Controller(cost, 1, drafting={1: 0.01}, chances=saved[0])
    later.asks(1, 1, 0)
    assert [later.next_length(1, 1, 1, 0) for _ in range(20)].count(1) <= 6, "tries alone"
