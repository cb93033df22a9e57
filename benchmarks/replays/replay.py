"""Recorded answers through the engine's scheduler, drafting and controller, without the model.

Everything that decides how much is drafted runs as it does in an engine; the target's tokens are looked up, and time
comes from a cost table instead of a clock. So a replay's only noise is the noise asked for, and the same replay gives
the same figures everywhere.

The time of prompts counts for the controller's clock and is left out of the result, since it is the same for all
settings: tokens are those after each answer's first. The batch is full to the end, and a request waits: after the
    last the first is asked again, by another tenant, which earlier answers do not help.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.replays.costs import Costs, LookUps
from benchmarks.replays.steps import Outcome, Step, step_of
from benchmarks.replays.traces import Recorded
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.config.speculative import AUTO
from parlay.drafting.belief import Belief
from parlay.drafting.cost import StepCost
from parlay.drafting.device_length import DeviceLength
from parlay.drafting.drafting import Drafting
from parlay.drafting.host_drafts import LoadedProposer
from parlay.drafting.policy import Policy
from parlay.engine.request import Request
from parlay.engine.scheduler import Scheduler
from parlay.kv.pool import BlockPool
from parlay.kv.table import BlockTable
from parlay.models.select import describe_model
from parlay.proposers.base import DeviceProposer, HostProposer, Proposer, TargetInfo, draft_length
from parlay.proposers.select import automatic, make_proposer, proposers
from parlay.types.cache import CacheSpec
from parlay.types.draft import NO_DRAFT, ROOT, Draft
from parlay.types.draft_tree import children
from parlay.types.params import SamplingParams
from parlay.types.plan import NO_PROPOSAL, Proposal, ProposerState, Span, StepOutput, StepTimes, Verdict

TIMED = (1, 2, 4, 8, 16, 32)  # rows of the passes that an engine times at start
STEPS = 400  # of plain decoding, that a replay has at least
_ROWS = 512  # of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How drafts are made.

    Attributes:
        method: the proposer, `AUTO` for all on the host; the chains of others must be in the trace.
        length: most nodes of a draft; None takes the proposer's own.
        chosen: whether lengths are chosen, from measured cost and acceptance; otherwise they are fixed.
    """

    method: str
    length: int | None = None
    chosen: bool = False


PLAIN = Setting(method="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Random slow-down of steps, the same in every replay with the same seed.

    Attributes:
        spread: each step takes up to this share more or less.
        burst: the probability that a burst of other load begins with a step.
        steps: that a burst lasts.
        factor: by which it makes steps longer.
        seed: of all that.
    """

    spread: float = 0.0
    burst: float = 0.0
    steps: int = 30
    factor: float = 2.0
    seed: int = 0


QUIET = Noise()


class _Counted(HostProposer):
    """A host proposer that counts how often it is asked, and takes a given time."""

    def __init__(self, inner: HostProposer, seconds: float) -> None:
        self._inner, self._seconds = inner, seconds
        self.taken = 0.0  # seconds
        self.default_length, self.learns = inner.default_length, inner.learns
        self._count = 0

    def take(self) -> int:
        count, self._count = self._count, 0
        return count

    def admit(self, request_id: int, prompt: Sequence[int], tenant: str | None) -> None:
        self._inner.admit(request_id, prompt, tenant)

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        self._inner.observe(request_id, tokens)

    def propose(self, request_id: int, budget: int) -> Draft:
        self._count += 1
        self.taken += self._seconds
        return self._inner.propose(request_id, budget)

    def branch(self, request_id: int, budget: int) -> Draft:
        self._count += 1
        self.taken += self._seconds
        return self._inner.branch(request_id, budget)

    def forget(self, request_id: int) -> None:
        self._inner.forget(request_id)


class _Looked(DeviceProposer):
    """Stands in for a proposer with weights, whose chains are in the trace."""

    def __init__(self, name: str, requests: Sequence[Recorded]) -> None:
        self.default_length = max(len(d) for r in requests for d in r.chains[name])
        self.pairs = proposers.load(name).Proposer.pairs
        self.cache = CacheSpec(0, 0, 0, 0) if self.pairs else None
        self._name, self._requests = name, requests

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Any, tapped: Any = None
    ) -> list[Proposal]:
        return [self._propose(span, verdict) for span, verdict in zip(spans, verdicts, strict=True)]

    def _propose(self, span: Span, verdict: Verdict) -> Proposal:
        ask, length = span.catch_up, draft_length(span, verdict)
        if not (ask.budget or ask.follow):
            return NO_PROPOSAL
        state = ask.state
        if ask.follow:
            known = state.next_pair + len(ask.rerun)
            completes = known - 1 == span.start
            state = ProposerState(known + completes * (len(span.tokens) + len(verdict.path)))
            if not completes:
                return Proposal(state=state)
        if length < 1:
            return Proposal(state=state)
        recorded = self._requests[span.request_id % len(self._requests)]
        known = span.end - len(recorded.prompt) + len(verdict.tokens)
        chains = recorded.chains[self._name]
        return Proposal(chains[known - 1].cut(length) if known <= len(chains) else NO_DRAFT, state)


@dataclass(slots=True)
class _Log:
    steps: list[Step] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Replay:
    """One replay, step by step.

    Attributes:
        policy: what chooses lengths, if anything does.
    """

    def __init__(
        self,
        requests: Sequence[Recorded],
        setting: Setting,
        batch: int,
        costs: Costs,
        *,
        temperature: float = 0.0,
        noise: Noise = QUIET,
        learn: bool = True,
    ) -> None:
        """Begin with nothing asked.

        Args:
            requests: asked in order, `batch` at once: when one ends, the next begins, after the last the first.
            setting: how drafts are made.
            batch: requests at once.
            costs: what steps take.
            temperature: that the answers were sampled at.
            noise: what makes steps longer.
            learn: whether a controller begins with the passes that an engine times at start.
        """
        self._recorded, self._setting, self._costs = requests, setting, costs
        self._params = SamplingParams(temperature=temperature, ignore_eos=True)
        methods = _methods(setting, requests, costs)
        self._hosts = {m.name: m.proposer for m in methods if isinstance(m.proposer, _Counted)}
        self._device = next((m.proposer for m in methods if isinstance(m.proposer, _Looked)), None)
        length = max((method.length for method in methods), default=0)
        name = setting.method if self._device is not None else ""
        self.policy = _policy(costs, name, learn) if setting.chosen else None
        config = EngineConfig(max_num_seqs=batch, max_num_batched_tokens=_ROWS, enable_prefix_caching=False)
        longest = max(len(r.prompt) + len(r.output) for r in requests)
        pool = BlockPool(batch * (-(-(longest + length + 2) // config.block_size)), config.block_size)
        self._scheduler = Scheduler(config, pool, drafting(methods, self.policy, self._taken))
        self._asked = 0
        self._noise, self._rng, self._burst = noise, random.Random(noise.seed), 0
        self._log = _Log()
        for _ in range(batch + 1):  # one waits, as behind a server that is busy
            self._ask()

    def run(self, tokens: int) -> Outcome:
        """Run until so many tokens that count are emitted."""
        while tokens > 0:
            tokens -= self.step().emitted
        return self.outcome

    @property
    def outcome(self) -> Outcome:
        """The result so far."""
        return Outcome(tuple(self._log.steps), tuple(self._log.seconds))

    def step(self) -> Step:
        """Run one step, as `parlay.engine.step.run_step` does."""
        scheduler = self._scheduler
        plan = scheduler.plan()
        verdicts = [self._verdict(span) for span in plan.spans]
        proposals = [Proposal()] * len(plan.spans)
        if self._device is not None:
            proposals = self._device.propose(plan.spans, verdicts, torch.empty(0))
        asked = {name: host.take() for name, host in self._hosts.items()}
        step = step_of(plan, verdicts, proposals, asked)
        factor = self._slower()
        own = factor * step.seconds(self._costs)
        drafting = 0.0
        if self._device is not None:
            drafting = factor * step.drafting_seconds(self._costs, self._setting.method)
        output = StepOutput(plan.plan_id, tuple(verdicts), tuple(proposals), StepTimes(own, 0.0, drafting))
        moved = scheduler.commit(plan, output, 0.0, lambda: own + drafting)
        for request in moved:
            if request.finish_reason is not None:
                self._ask()
        self._log.steps.append(step)
        self._log.seconds.append(own + drafting - factor * step.prompt_seconds(self._costs))
        return step

    def _taken(self) -> float:
        """Seconds that host proposers have taken: the clock that drafting reads."""
        return sum(host.taken for host in self._hosts.values())

    def _ask(self) -> None:
        number, self._asked = self._asked, self._asked + 1
        turn, place = divmod(number, len(self._recorded))
        recorded = self._recorded[place]
        self._scheduler.add(
            Request(
                request_id=number,
                prompt_tokens=recorded.prompt,
                params=self._params,
                seed=number,
                max_tokens=len(recorded.output),
                stop_ids=frozenset(),
                table=BlockTable(self._scheduler.pool),
                tenant=f"turn {turn}",
            )
        )

    def _verdict(self, span: Span) -> Verdict:
        """Return the target's verdict: its walk down a draft needs no logits when the answer is known."""
        if not span.sample:
            return Verdict()
        recorded = self._recorded[span.request_id % len(self._recorded)]
        known = span.end - len(recorded.prompt)
        path: list[int] = []
        if span.draft.tokens:
            below, at = children(span.draft), ROOT
            for token in recorded.output[known:]:
                node = below[at].get(token)
                if node is None:
                    break
                path.append(node)
                at = node
        return Verdict(recorded.output[known : known + len(path) + 1], tuple(path))

    def _slower(self) -> float:
        noise, rng = self._noise, self._rng
        factor = 1 + rng.uniform(-noise.spread, noise.spread) if noise.spread else 1.0
        if self._burst:
            self._burst -= 1
        elif noise.burst and rng.random() < noise.burst:
            self._burst = noise.steps
        return factor * (noise.factor if self._burst else 1.0)


def drafting(
    methods: Sequence[LoadedProposer], policy: Policy | None, clock: Callable[[], float] = lambda: 0.0
) -> Drafting:
    """Return an engine's drafting."""
    return Drafting(methods, share_prefixes=False, policy=policy, tree=policy is not None, clock=clock)


def replay(
    requests: Sequence[Recorded],
    setting: Setting,
    batch: int,
    costs: Costs,
    *,
    temperature: float = 0.0,
    noise: Noise = QUIET,
    steps: int = STEPS,
) -> Outcome:
    """Return the result of a replay; see `Replay`.

    Args:
        requests: as there.
        setting: likewise.
        batch: likewise.
        costs: likewise.
        temperature: likewise.
        noise: likewise.
        steps: that plain decoding would take at least; all answers are replayed once at least.
    """
    tokens = max(sum(len(r.output) - 1 for r in requests), steps * batch)
    return Replay(requests, setting, batch, costs, temperature=temperature, noise=noise).run(tokens)


def priced(outcome: Outcome, setting: Setting, costs: Costs, weights: bool) -> Outcome:
    """Return the outcome of the same steps at other costs, on which fixed lengths do not depend.

    Args:
        outcome: of a replay with lengths that were not chosen.
        setting: its.
        costs: the other ones.
        weights: whether the method's chains are in the trace.
    """
    assert not setting.chosen, "chosen lengths depend on the costs"
    seconds = []
    for step in outcome.steps:
        drafting = step.drafting_seconds(costs, setting.method) if weights else 0.0
        seconds.append(step.seconds(costs) + drafting - step.prompt_seconds(costs))
    return Outcome(outcome.steps, tuple(seconds))


def _policy(costs: Costs, device: str, learn: bool) -> Policy:
    cost, belief = StepCost(_ROWS, costs.key_share), Belief()
    if learn:
        cost.learn([(rows, costs.seconds(rows)) for rows in TIMED])
    return Policy(cost, belief, DeviceLength(device, cost, belief) if device else None)


def _methods(setting: Setting, requests: Sequence[Recorded], costs: Costs) -> list[LoadedProposer]:
    """Return the proposers; none for plain decoding."""
    if setting.method == PLAIN.method:
        return []
    found = {
        name: _proposer(name, requests, costs.look_ups.get(name, LookUps()).asked)
        for name in (automatic() if setting.method == AUTO else [setting.method])
    }
    return [LoadedProposer(name, one, setting.length or one.default_length) for name, one in found.items()]


def _proposer(method: str, requests: Sequence[Recorded], seconds: float) -> Proposer:
    """Return one that looks its chains up, or one on the host, which needs no model."""
    if requests and method in requests[0].chains:
        return _Looked(method, requests)
    embedded = describe_model("tiny-code")  # stands in for a target that host proposers do not look at
    target = TargetInfo(embedded, torch.float32, embedded.max_position)
    proposer = make_proposer(SpeculativeConfig(method=method), target)
    assert isinstance(proposer, HostProposer)
    return _Counted(proposer, seconds)
