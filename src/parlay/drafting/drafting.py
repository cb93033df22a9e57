"""Which proposers draft for which request, how much is verified, and what is learnt from it.

The scheduler knows rows and blocks, not proposers. For each step it calls `plan`, which makes the drafts within the
rows that are left, and `learn`, with what became of them. What a device proposer has to catch up travels to it in the
plan, which the scheduler does not read.

In every step each request has one tree of the nodes of all its host proposers and those that a device proposer made
at the end of the step before. A grammar removes forbidden nodes and adds forced ones. The policy leaves out nodes
that are not worth their rows; these are judged by the tokens that came instead.

Drafts cost no request anything: an error in `plan` or `learn` costs the step's drafts and what was learnt, and after
eight such errors nothing is drafted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from math import log1p
from time import perf_counter

from parlay.drafting.belief import Belief
from parlay.drafting.candidates import Candidates, hosted
from parlay.drafting.device_drafts import DeviceDrafts
from parlay.drafting.host_drafts import Faults, HostDrafts, LoadedProposer
from parlay.drafting.limits import own_bound, permitted, within
from parlay.drafting.policy import Policy
from parlay.drafting.prediction import DEFAULT_LENGTH
from parlay.drafting.state import (
    PLAIN,
    Candidate,
    DraftedRequest,
    HostSource,
    Outcome,
    Rows,
    StepDrafts,
    StepPart,
    Why,
)
from parlay.drafting.timing import learn_times
from parlay.log import logger
from parlay.proposers.base import DeviceProposer, HostProposer
from parlay.types.draft import NO_DRAFT
from parlay.types.draft_tree import height, levels, walk
from parlay.types.plan import Plan, ProposerState, StepOutput, Verdict

_TIMED = 8  # one in so many plain steps is timed: a few suffice to learn their cost
_MOST_ERRORS = 8  # errors after which there are no more drafts
_FORGIVEN = 10_000  # steps without an error after which earlier errors do not count


class Drafting:
    """Owns the proposers, what is learnt of them, and the policy.

    Attributes:
        faults: failures of the proposers.
        policy: policy that chooses lengths; None where they are fixed.
        seconds: time that host proposers took since start.
    """

    def __init__(
        self,
        methods: Sequence[LoadedProposer],
        *,
        predicted_length: int | None = None,
        share_prefixes: bool = True,
        policy: Policy | None = None,
        tree: bool = False,
        most_nodes: Callable[[int], int | None] = lambda batch_size: None,
        longest_text: int | None = None,
        remember: bool = True,
        vocab_size: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Start with nothing learnt.

        Args:
            methods: the proposers; at most one of them on the device.
            predicted_length: most nodes of drafts from a prediction; None takes the default for those.
            share_prefixes: whether blocks with a proposer's keys and values may be found by other requests.
            policy: policy that chooses lengths from measured cost and acceptance; None drafts as much as allowed.
            tree: whether drafts may have branches, and those of several proposers be joined.
            most_nodes: most nodes of a draft by number of requests that emit at once; None for no further limit.
            longest_text: most tokens of a sequence that has drafts, these included; None for no limit.
            remember: whether proposers may learn from one request for another.
            vocab_size: bound of draft tokens' ids, which are checked; None skips the check.
            clock: clock in seconds.
        """
        self.faults, self.seconds = Faults(), 0.0
        self.policy, self._first = policy, deepcopy(policy)  # as it was at the start
        self._candidates = Candidates(policy.belief if policy else Belief(), self.faults)
        self._tree = tree
        hosts = (one for one in methods if isinstance(one.proposer, HostProposer))
        self._hosts = [HostDrafts(one, vocab_size, self.faults) for one in hosts]
        device = next((one for one in methods if isinstance(one.proposer, DeviceProposer)), None)
        self._device: DeviceDrafts | None = None
        if device is not None:
            self._device = DeviceDrafts(
                device, policy, self.faults, share_prefixes=share_prefixes, vocab_size=vocab_size
            )
        self._lengths = {method.name: method.most for method in methods}
        self._longest = max([*self._lengths.values(), predicted_length or DEFAULT_LENGTH])
        self._most_nodes, self._bound = most_nodes, most_nodes(1)
        self._longest_text = longest_text or 1 << 62
        self._remember, self._clock = remember, clock
        self._eager = set[int]()  # requests with a prediction or a grammar, which cost nothing to ask
        self._hit = False  # whether any draft token was accepted in the last step
        self._steps = self._errors = self._failed = 0  # `_failed`: the step of the last error

    # -------------------------------------------------------------------------------------- a request's life

    def add(self, request: DraftedRequest) -> None:
        """Register a waiting request and the proposers that may draft for it."""
        state, names = request.drafting, permitted(request, tuple(self._lengths))
        if names is None:
            state.prediction, names = None, ()
        state.longest = within(request, max((self._lengths[name] for name in names), default=0))
        hosts: list[HostSource] = [host for host in self._hosts if host.name in names]
        state.hosts = tuple([self._candidates.predictions, *hosts] if state.prediction is not None else hosts)
        state.device = self._device is not None and self._device.name in names
        if state.prediction is not None or state.constraint is not None:
            self._eager.add(request.request_id)

    def admit(self, request: DraftedRequest) -> None:
        """Register that a request runs for the first time."""
        for host in self._hosts:
            if host in request.drafting.hosts:
                host.admit(request, request.tenant if self._remember else None)
        if self._device is not None:
            self._device.admit(request)

    def adopt(self, request: DraftedRequest) -> None:
        """Record how much of the prefix in a request's blocks is valid for the proposer too."""
        if self._device is not None:
            self._device.adopt(request)

    def reset(self, request: DraftedRequest) -> None:
        """Forget what lay in blocks that a request has lost."""
        request.drafting.pending = NO_DRAFT
        request.drafting.clear()
        if self._device is not None:
            self._device.drop(request)

    def lose_step(self, request: DraftedRequest) -> None:
        """Register that a step was lost, in which a device proposer may have advanced all the same."""
        request.drafting.clear()
        if self._device is not None:
            self._device.drop(request, layers=False)

    def forget(self, request: DraftedRequest) -> None:
        """Drop everything kept for a request that has ended."""
        self._eager.discard(request.request_id)
        if self._device is not None:
            self._device.end(request)
        for host in request.drafting.hosts:
            host.forget(request)

    def reach(self, request: DraftedRequest) -> int:
        """Return how many tokens' slots a device proposer's layers use."""
        return request.drafting.layers.computed + request.drafting.layers.speculated

    # ------------------------------------------------------------------------------------------------- a step

    def rerun(self, request: DraftedRequest) -> int:
        """How many computed tokens of a request are to run once more, for states that a device proposer lacks."""
        device = self._device if request.drafting.device else None
        return device.rerun(request) if device is not None and self.limit(request) > 0 else 0

    def limit(self, request: DraftedRequest) -> int:
        """How many nodes a draft may have; 0 or less: none."""
        if self._errors >= _MOST_ERRORS:
            return 0
        state, bound = request.drafting, self._bound
        longest = state.longest if state.prediction is None else within(request, self._longest)
        if bound is not None and own_bound(request) is None:
            longest = min(longest, bound)
        return min(longest, request.remaining - 1, self._longest_text - len(request.tokens))

    def plan(
        self, rows: Collection[tuple[DraftedRequest, Rows]], left: int, most: int, *, waiting: bool = False
    ) -> StepDrafts:
        """Make the drafts of a step.

        Args:
            rows: rows that each request runs besides its draft.
            left: number of further rows that there is room for; without a policy each request has an equal share.
            most: most rows of a step.
            waiting: whether further requests are queued.
        """
        self._steps += 1
        if self._rests(rows):
            for request, _ in rows:
                state = request.drafting
                state.why = Why.PAUSED if state.hosts or state.device else Why.NOT_ALLOWED
            # The next step may begin behind this one, or behind the end of a prompt.
            next_drafts = self._device is not None and self._device.chooses_length(self._steps + 1)
            proposer_idle = not next_drafts and all(part.known == 1 for _, part in rows)
            timed = not self._steps % _TIMED
            return StepDrafts([PLAIN] * len(rows), self._forgotten(), timed=timed, proposer_idle=proposer_idle)
        try:
            return self._plan(rows, left, most, waiting=waiting)
        except Exception as error:
            self._recover(error, [request for request, _ in rows])
            return StepDrafts([PLAIN] * len(rows), self._forgotten())

    def learn(
        self,
        step: StepDrafts,
        plan: Plan,
        output: StepOutput,
        outcomes: Sequence[Outcome],
        elapsed: Callable[[], float],
    ) -> Sequence[Sequence[tuple[float, bool]]]:
        """Learn the acceptance of a step's drafts, also of those that were not verified, and what they cost.

        Args:
            step: what `plan` has returned.
            plan: the step's plan.
            output: the results of executing it.
            outcomes: results of its requests that had not ended before.
            elapsed: function that returns the step's seconds so far; called last, since learning takes time too.

        Returns:
            For each outcome, of each verified node that the target judged: its probability, and whether it was
            accepted.
        """
        judged: Sequence[Sequence[tuple[float, bool]]] = [()] * len(outcomes)
        self._hit = False
        try:
            if step.active:
                judged = [self._judge(step, one) for one in outcomes]
            if self.policy is not None:
                learn_times(self.policy, step, plan, output, elapsed())
        except Exception as error:
            self._recover(error, [one.request for one in outcomes if not one.ended])
        return judged

    def _rests(self, rows: Collection[tuple[DraftedRequest, Rows]]) -> bool:
        """Whether a step has nothing to draft from, as is usual where drafts do not pay."""
        if self._eager or self._hit:
            return False
        policy, device = self.policy, self._device
        if device is not None and not device.proposer_idle(self._steps, (request for request, _ in rows)):
            return False
        if policy is None or not self._hosts:
            return not self._hosts
        if not policy.plain or policy.measuring.left:
            return False
        if policy.host_budget.affords(len(rows)):
            return False
        policy.host_budget.save(policy.plain)
        return True

    def _plan(
        self, rows: Collection[tuple[DraftedRequest, Rows]], left: int, most: int, *, waiting: bool
    ) -> StepDrafts:
        emits = [request for request, (known, _) in rows if known == request.gap]
        emitting = len(emits)
        self._bound = self._most_nodes(emitting)
        limits = {request: self.limit(request) for request in emits}
        requests = [request for request, limit in limits.items() if limit > 0]
        step = StepDrafts(emitting=emitting, active=self._device is not None)
        policy = self.policy
        for request in emits:
            state = request.drafting
            if state.candidates:
                state.clear()
            if limits[request] < 1:
                state.why = Why.NOT_ALLOWED
        if policy is None:
            room = left
            for place, request in enumerate(requests):
                room -= self._take_all(step, request, room // (len(requests) - place))
        elif requests:
            keys = sum(request.computed + known for request, (known, _) in rows)
            policy.begin(emitting, most - left, keys)
            self._choose(step, policy, requests, most - left, keys, left, waiting=waiting)
            device = self._device
            if device is not None and (device.chooses_length(self._steps) or policy.measuring.left):
                device.choose(requests, [limits[request] for request in requests], emitting, keys)
        if self._device is not None:
            step.length = self._device.next_length
        plain = policy is not None and not (step.drafted or (requests and step.length))
        step.timed = not (plain and self._steps % _TIMED and not (policy and policy.measuring.left))
        step.parts = self._parts(rows, limits, left, most, max(len(requests), 1))
        step.forgotten = self._forgotten()
        return step

    def _choose(
        self,
        step: StepDrafts,
        policy: Policy,
        requests: Sequence[DraftedRequest],
        rows: int,
        keys: int,
        room: int,
        *,
        waiting: bool,
    ) -> None:
        """Gather drafts of at most `room` nodes, and choose those that are worth their rows."""
        step.fair, step.plain = policy.fair(waiting=waiting), policy.plain
        rich, asked, began = True, 0, 0.0
        if self._hosts:
            policy.host_budget.save(policy.plain)
            rich = policy.host_budget.affords(len(requests))
        why = Why.EXPENSIVE if not policy.may_draft else Why.NO_PROPOSAL if rich else Why.PAUSED
        some: list[DraftedRequest] = []
        branches = self._tree and policy.branches
        for request in requests:
            state = request.drafting
            state.why = why
            free = state.prediction is not None or state.constraint is not None
            ask = policy.may_draft and (free or ((rich or state.hit) and bool(state.hosts)))
            if not (ask or state.pending.tokens):
                state.drop_speculated()
                continue
            if ask and not asked:
                began = self._clock()
            asked += ask
            hosts = (
                () if not ask else state.hosts if rich or state.hit else state.hosts[:1] if state.prediction else ()
            )
            step.active = True
            candidates = state.candidates = self._gather(request, room, hosts, policy.price, branch=branches)
            if candidates and policy.may_draft:
                state.best, state.why = self._best(request, room, branches=branches), Why.UNLIKELY
                some.append(request)
            else:
                state.drop_speculated()
        if asked:
            step.asking = self._clock() - began
            self.seconds += step.asking
            policy.host_budget.spend(step.asking, asked)
        if policy.device_length is not None and self._hosts and not self._steps % _TIMED:
            policy.device_length.observe_hosts(policy.gain(hosted(some), step.emitting, rows, keys))
        drafts = [request.drafting.best for request in some]
        best = [one for one in drafts if one is not None]
        made = any(one.speculated for one in best)
        chances = [one.chances for one in best]
        chosen = policy.choose(chances, step.emitting, rows, keys, waiting=waiting, from_device=made) if some else []
        count = 0
        for request, one, nodes in zip(some, best, chosen, strict=True):
            request.drafting.take(nodes)
            count += one.count_hosted(nodes)
        if count:
            policy.host_budget.gain(-policy.price_of(rows, count))
        step.drafted = any(chosen)

    def _take_all(self, step: StepDrafts, request: DraftedRequest, room: int) -> int:
        """Draft as much as possible, at most `room` nodes; return how many nodes that is."""
        state, began, step.active = request.drafting, self._clock(), True
        state.candidates = self._gather(request, room, state.hosts, 0.0, branch=self._tree)
        state.why = Why.NO_PROPOSAL
        if state.candidates:
            best = state.best = self._best(request, room, branches=self._tree)
            state.take(range(len(best.draft)))
        else:
            state.drop_speculated()
        self.seconds += self._clock() - began
        return len(state.chosen)

    def _parts(
        self,
        rows: Collection[tuple[DraftedRequest, Rows]],
        limits: Mapping[DraftedRequest, int],
        left: int,
        most: int,
        drafting: int,
    ) -> list[StepPart]:
        """Return each request's part in the step, as far as rows and blocks are left."""
        catching = max(2, most // 4)  # rows that run again: all requests wait for them
        next_share = most // drafting - 1  # the next step will have about as many requests
        device, parts = self._device, []
        for request, (known, again) in rows:
            state, end = request.drafting, request.computed + known
            chosen = state.chosen
            # Other requests may have taken rows to catch up.
            draft = chosen.cut(left) if chosen.tokens else chosen
            if device is not None and state.device:
                limit = limits[request] if request in limits else self.limit(request)
                part = device.part(request, draft, limit, end, again, min(left - len(draft), catching), next_share)
                further = max(len(part.catch_up.rerun) - again, 0)
                left, catching = left - further, catching - further
            elif draft.tokens and request.table.grow(min(end + len(draft), request.longest)):
                part = StepPart(draft)
            else:
                part = PLAIN
            left -= len(part.draft)
            parts.append(part)
        return parts

    def _judge(self, step: StepDrafts, outcome: Outcome) -> list[tuple[float, bool]]:
        """Learn the acceptance of a request's drafts; return its part of what `learn` returns."""
        state, span, verdict, policy = outcome.request.drafting, outcome.span, outcome.verdict, self.policy
        if self._device is not None and not outcome.ended:
            self._device.advance(outcome.request, outcome.proposal)
        state.hit = bool(verdict.path)
        self._hit = self._hit or state.hit
        if not (span.sample and state.candidates):
            return []
        best, taken = state.best, set(state.taken[: len(span.draft)])
        if best is not None:
            gained = best.count_hosted(state.taken[node] for node in verdict.path)
            step.gained += log1p(gained) if step.fair else gained
        judged: list[tuple[int, bool]] = []
        for candidate in state.candidates:
            draft, path = candidate.draft, walk(candidate.draft, verdict.tokens)
            found = self._candidates.belief.judge(draft, Verdict(verdict.tokens, path), span.params)
            if candidate is best:
                judged = found
            if candidate.pending and policy is not None and policy.device_length is not None:
                right = levels(draft, path, len(verdict.tokens))
                own = len(taken) - best.count_hosted(taken) if best is not None else 0
                policy.device_length.judged(right, height(draft), own)
        if best is not None and best.joined:
            whole = Verdict(verdict.tokens, walk(best.draft, verdict.tokens))
            judged = self._candidates.belief.judge(best.draft, whole, span.params, joined=True)
        state.clear()
        probs = best.draft.probs if best is not None else None
        return [(probs[node], right) for node, right in judged if node in taken] if probs is not None else []

    def _forgotten(self) -> tuple[int, ...]:
        return self._device.forgotten() if self._device is not None else ()

    # ------------------------------------------------------------------------------------------------ recovery

    def _recover(self, error: Exception, requests: Iterable[DraftedRequest]) -> None:
        """Go on after an error of drafting: without the drafts of these requests, and with nothing learnt."""
        self._errors = 1 if self._steps - self._failed > _FORGIVEN else self._errors + 1
        self._failed = self._steps
        rest = "speculation is disabled" if self._errors >= _MOST_ERRORS else "its estimates are reset"
        logger.error("drafting failed (%s: %s); %s", type(error).__name__, error, rest, exc_info=error)
        self._reset_policy()
        for request in requests:
            self.reset(request)

    def restart(self, requests: Iterable[DraftedRequest]) -> None:
        """Start over with these requests, and with what was known at the start: all else may be in any state."""
        self._reset_policy()
        for host in self._hosts:
            host.reset()
        self._forgotten()  # the proposer has dropped them too
        for request in requests:
            state = request.drafting
            state.clear()
            state.pending, state.layers, state.hit = NO_DRAFT, ProposerState(), False
            self.admit(request)

    def _reset_policy(self) -> None:
        self.policy = deepcopy(self._first)
        self._candidates.belief = self.policy.belief if self.policy else Belief()
        if self._device is not None:
            self._device.restart(self.policy)

    # ---------------------------------------------------------------------------------------------- one draft

    def _gather(
        self, request: DraftedRequest, room: int, hosts: Iterable[HostSource], price: float, *, branch: bool
    ) -> list[Candidate]:
        return self._candidates.gather(request, min(self.limit(request), room), room, hosts, price, branch=branch)

    def _best(self, request: DraftedRequest, room: int, *, branches: bool) -> Candidate:
        price = self.policy.price if self.policy is not None else 0.0
        return self._candidates.best(request, min(self.limit(request), room), price, branches=branches)
