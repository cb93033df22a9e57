"""Which proposers draft for which request, how much is verified, and what is learnt from it.

The scheduler knows rows and blocks, not proposers. It asks how many nodes a request may have (`limit`, `states`) and
for drafts within what was granted (`draft`), and it reports what became of them (`observe`). What a device proposer
has to catch up travels to it in the plan (`catch_up`), which the scheduler does not read.

In every step each request has one tree of the nodes of all its host proposers and those that a device proposer made
at the end of the step before; the output that its user predicted comes before them all. A grammar removes forbidden
nodes and adds forced ones. A controller leaves out nodes that are not worth their rows, by calibrated probabilities.
Nodes that were not verified are judged by the tokens that came instead.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from math import expm1, log1p
from time import perf_counter

from parlay.acceptance.tree import height, levels, walk
from parlay.drafting.bounds import own_bound, permitted, within
from parlay.drafting.controller import Controller
from parlay.drafting.device import Device
from parlay.drafting.harmless import Mishaps, harmless
from parlay.drafting.hosts import Faults, Host, Method
from parlay.drafting.measured import measured
from parlay.drafting.notes import Notes
from parlay.drafting.offers import NOTHING, Offer
from parlay.drafting.prediction import DEFAULT_LENGTH
from parlay.drafting.recovery import Recovery
from parlay.drafting.state import Candidate, Drafted, Why
from parlay.drafting.union import best_of, union
from parlay.proposers.base import DeviceProposer, HostProposer
from parlay.types.draft import NO_DRAFT
from parlay.types.plan import CatchUp, Plan, Proposal, Span, SpanError, StepOutput, Verdict

_TIMED = 8  # steps
_LEAST = 0.25  # of the price of a row: a host proposer's chain ends where it promises less
_NOTHING = CatchUp()  # for a device proposer, if there is one


class Drafting(Recovery):
    """Owns the proposers, predictions, grammars' part in drafts, calibration and the controller.

    Attributes:
        faults: of the proposers.
        controller: chooses lengths; None where they are fixed.
        step: notes on the step that is planned or committed; with several under way, the scheduler keeps each one's.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        *,
        predicted_length: int | None = None,
        share_prefixes: bool = True,
        controller: Controller | None = None,
        tree: bool = False,
        most_nodes: Callable[[int], int | None] = lambda batch_size: None,
        longest_text: int | None = None,
        remember: bool = True,
        vocab_size: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Begin with nothing learnt.

        Args:
            methods: the proposers; at most one of them on the device.
            predicted_length: most nodes of drafts from a prediction; None takes the default for those.
            share_prefixes: whether blocks with a proposer's keys and values may be found by other requests.
            controller: chooses lengths from measured cost and acceptance; None drafts as much as allowed.
            tree: whether drafts may have branches, and those of several proposers be joined.
            most_nodes: of a draft, by how many requests emit at once; None for no further limit.
            longest_text: tokens of a sequence that has drafts, these included; None for no limit.
            remember: whether proposers may learn from one request for another.
            vocab_size: draft tokens have ids below this; None skips the check.
            clock: in seconds.
        """
        self.faults, self._mishaps = Faults(), Mishaps()
        self.controller, self._first = controller, deepcopy(controller)
        self._tree = self._branches = tree  # in general, and in this step
        hosts = (one for one in methods if isinstance(one.proposer, HostProposer))
        self._hosts = [Host(one, vocab_size, self.faults.add) for one in hosts]
        device = next((one for one in methods if isinstance(one.proposer, DeviceProposer)), None)
        self._device: Device | None = None
        if device is not None:
            self._device = Device(
                device, controller, self.faults, share_prefixes=share_prefixes, vocab_size=vocab_size
            )
        self._lengths = {method.name: method.most for method in methods}
        self._longest = max([*self._lengths.values(), predicted_length or DEFAULT_LENGTH])
        self._most_nodes, self._bound = most_nodes, most_nodes(1)
        self._longest_text = longest_text or 1 << 62
        self._remember, self._clock = remember, clock
        self.step, self._steps = Notes(), 0
        self._learn()

    @property
    def seconds(self) -> float:
        """Seconds that host proposers took since start."""
        return self._account.seconds

    # -------------------------------------------------------------------------------------- a request's life

    def add(self, request: Drafted) -> None:
        """Register a waiting request and the proposers that may draft for it."""
        state, names = request.drafting, permitted(request, tuple(self._lengths))
        if names is None:
            state.prediction, names = None, ()
        state.longest = within(request, max((self._lengths[name] for name in names), default=0))
        state.hosts = tuple(host for host in self._hosts if host.name in names)
        state.device = self._device is not None and self._device.name in names

    def admit(self, request: Drafted) -> None:
        """Register that a request runs for the first time."""
        state, tenant, length = request.drafting, request.tenant if self._remember else None, len(request.tokens)
        state.turns = tuple((host, host.admit(request.request_id, length, tenant)) for host in state.hosts)
        state.rest()

    def adopt(self, request: Drafted) -> None:
        """Record how much of the prefix in a request's blocks is valid for the proposer too."""
        if self._device is not None:
            self._device.adopt(request)

    def reset(self, request: Drafted) -> None:
        """Forget what lay in blocks that a request has lost."""
        request.drafting.pending = NO_DRAFT
        request.drafting.clear()
        if self._device is not None:
            self._device.drop(request)

    def lose_step(self, request: Drafted) -> None:
        """Register that a step was lost, in which a device proposer may have advanced all the same."""
        request.drafting.clear()
        if self._device is not None:
            self._device.drop(request, layers=False)

    def forget(self, request: Drafted) -> None:
        """Drop everything kept for a request that has ended."""
        request.drafting.prediction = None
        if self._device is not None:
            self._device.end(request)
        for host in request.drafting.hosts:
            host.forget(request.request_id, request.tokens)

    # ------------------------------------------------------------------------------------------------- a step

    def states(self, request: Drafted) -> int:
        """How many computed tokens of a request are to run once more, for states that a device proposer lacks."""
        device = self._device if request.drafting.device else None
        return device.states(request) if device and device.next_length and self.limit(request) > 0 else 0

    def limit(self, request: Drafted, emitting: int | None = None) -> int:
        """How many nodes a draft may have where so many requests emit, or as many as last; 0 or less: none."""
        if self._mishaps.given_up:
            return 0
        state, bound = request.drafting, self._bound if emitting is None else self._most_nodes(emitting)
        longest = state.longest if state.prediction is None else within(request, self._longest)
        if bound is not None and own_bound(request) is None:
            longest = min(longest, bound)
        return min(longest, request.remaining - 1, self._longest_text - len(request.tokens))

    @harmless(lambda: None)
    def prepare(
        self, requests: Sequence[Drafted], emitting: int, rows: int, keys: int, room: int, *, waiting: bool = False
    ) -> None:
        """Make the drafts of a step.

        Args:
            requests: those that may have a draft.
            emitting: how many requests emit in this step.
            rows: number of rows without drafts.
            keys: number of keys that these read.
            room: most rows for drafts; without a controller each request has an equal share.
            waiting: whether further requests are queued.
        """
        self._bound, self._steps = self._most_nodes(emitting), self._steps + 1
        if self._mishaps.given_up:
            self.step = Notes(emitting)
            return
        self._calibration.step = self._steps
        step = self.step = Notes(emitting, offered=bool(requests))
        control, device = self.controller, self._device
        if control is None:
            for place, request in enumerate(requests):
                room -= self._take_all(request, room // (len(requests) - place))
            return
        thinks = device is not None and bool(requests) and (control.pauses or device.thinks(self._steps))
        idle = self._idle(requests, control.plain)
        if idle and not thinks:
            return
        asking = control.asks(emitting, rows, keys)
        if not idle:
            step.fair, self._branches = control.fair(waiting=waiting), self._tree and control.branches
            self._gather(requests, room, asking, control.price)
        some = [request.drafting for request in requests if request.drafting.best is not None]
        if some:
            best = [state.best for state in some if state.best is not None]
            chances, made = [one.chances for one in best], any(one.speculated for one in best)
            chosen = control.choose(chances, emitting, rows, keys, waiting=waiting, from_device=made)
            for state, nodes in zip(some, chosen, strict=True):
                state.take(nodes, self._steps)
            guessed = sum(state.best.guessed(state.taken) for state in some if state.best is not None)
            self._account.gain(-control.extra(rows, guessed))
            step.plain, step.drafts = control.plain, any(chosen)
        step.looks = control.looks
        if thinks and device is not None:
            device.choose(requests, [self.limit(request) for request in requests], emitting, keys)
        step.device = device.next_length if device is not None else 0

    def _take_all(self, request: Drafted, room: int) -> int:
        """Draft as much as possible, at most `room` nodes; return how many nodes that is."""
        state, began = request.drafting, self._clock()
        state.clear()
        state.candidates = self._candidates(request, room)
        state.why = Why.NO_GUESS
        if state.candidates:
            best = state.best = self._best(request, room)
            state.take(range(len(best.draft)), self._steps)
        elif state.layers.speculated:
            state.layers = replace(state.layers, speculated=0)
        self._account.spend(self._clock() - began, 1)
        return len(state.chosen)

    def _idle(self, requests: Sequence[Drafted], plain: float) -> bool:
        """Whether a step of so many seconds has nothing to draft from, as is usual where drafts do not pay."""
        account, step = self._account, self._steps
        if self._hosts:
            account.save(plain, len(requests))
        poor = not (account.pays or account.affords)
        for request in requests:
            state = request.drafting
            if state.restless or (state.wake <= step and not poor):
                return False
            state.why = Why.NOT_ASKED if state.turns and poor else Why.NO_GUESS
        return True

    def _gather(self, requests: Sequence[Drafted], room: int, asking: bool, price: float) -> None:
        """Find each request's best draft, of at most `room` nodes; if `asking`, host proposers may be asked."""
        step, account, asked, began = self._steps, self._account, 0, self._clock()
        pays = account.pays or (asking and account.pay())
        for request in requests:
            state = request.drafting
            if state.candidates:
                state.clear()
            state.why = Why.NO_GUESS if asking else Why.EXPENSIVE
            free = asking and (state.prediction is not None or state.constraint is not None)
            if free or (asking and state.wake <= step):
                if not (free or pays or state.lucky):
                    state.why = Why.NOT_ASKED
                else:
                    asked += 1
                    state.candidates = self._candidates(request, room, price)
                    state.rest()
            if state.pending.tokens and not state.candidates:  # or nothing would be learnt of it
                state.candidates = self._candidates(request, room, anew=False)
            if state.candidates and asking:
                state.best, state.why = self._best(request, room), Why.UNLIKELY
            elif state.layers.speculated:
                state.layers = replace(state.layers, speculated=0)
        if asked:
            self.step.asking = self._clock() - began
            account.spend(self.step.asking, asked)

    @harmless(lambda: NOTHING)
    def draft(self, request: Drafted, end: int, rows: int, next_rows: int) -> Offer:
        """Return the draft of a request that was granted rows.

        Args:
            request: the one to draft for.
            end: how many of its tokens will be computed without the draft; all that are known, if it is to emit.
            rows: rows left in this step.
            next_rows: most nodes of a draft in the next step.
        """
        state, limit = request.drafting, self.limit(request)
        if limit < 1:
            state.why = Why.NOT_ALLOWED
        # Other requests may have taken rows to catch up.
        draft = state.chosen.cut(rows) if state.chosen.tokens and limit > 0 else NO_DRAFT
        if self._device is not None and state.device:
            return self._device.offer(request, draft, limit, end, next_rows)
        return Offer(draft, slots=len(draft)) if draft.tokens and end == len(request.tokens) else NOTHING

    @harmless(lambda: _NOTHING)
    def catch_up(self, request: Drafted, offer: Offer, end: int, states: int) -> CatchUp:
        """Return a device proposer's input for a request; `states` as granted."""
        device = self._device
        if device is None or (offer is NOTHING and not request.drafting.holding):
            return _NOTHING
        return device.catch_up(request, offer, end, states)

    @harmless(lambda: None)
    def advance(self, request: Drafted, proposal: Proposal) -> None:
        """Take a device proposer's result of a step."""
        if self._device is not None:
            self._device.advance(request, proposal)

    @harmless(list[tuple[float, bool]])
    def observe(
        self, request: Drafted, span: Span, verdict: Verdict, emitted: Sequence[int], *, ended: bool = False
    ) -> list[tuple[float, bool]]:
        """Learn what became of a request's drafts, also of those that were not verified.

        Args:
            request: the one drafted for.
            span: its part of the plan.
            verdict: the target's.
            emitted: which of the verdict's tokens the request has taken.
            ended: whether it has ended with them.

        Returns:
            Of each verified node that the target judged: its probability, and whether it was accepted.
        """
        state, verified = request.drafting, []
        state.lucky = bool(verdict.path)
        if state.prediction is not None and not ended:
            state.prediction.observe(emitted)
        if not state.candidates:
            return []
        best = state.best
        if best is not None:
            gained = best.guessed(state.taken[node] for node in verdict.path)
            self.step.gained += log1p(gained) if self.step.fair else gained
        for candidate in state.candidates:
            draft, path = candidate.draft, walk(candidate.draft, verdict.tokens)
            judged = self._calibration.observe(draft, Verdict(verdict.tokens, path), span.params)
            if candidate is best:
                verified = state.verified(judged, len(span.draft))
            if candidate.turn is not None and self.controller is not None and draft.probs is not None:
                chosen = candidate is best or (best is not None and best.joined is not None)
                if chosen and draft.probs[0] > self.controller.price:
                    known = [(draft.probs[node], right) for node, right in judged]
                    self._trust.observe(draft.source[0], span.params.temperature > 0, known)
                if len(path) > len(verdict.path):
                    candidate.turn.missed(self._steps)
                    state.rest()
            if candidate.pending and self.controller is not None:
                right = levels(draft, path, len(verdict.tokens))
                self.controller.judged(right, height(draft), state.own_nodes)
        if best is not None and best.joined is not None:
            whole = Verdict(verdict.tokens, walk(best.draft, verdict.tokens))
            judged = self._calibration.observe(best.draft, whole, span.params, joined=True)
            verified = state.verified(judged, len(span.draft))
        state.clear()
        return verified

    @harmless(lambda: None)
    def timed(self, plan: Plan, output: StepOutput, seconds: float) -> None:
        """Learn how long a step took, `seconds` in all, and what drafts have saved."""
        step = self.step
        if step.gained:  # by the mean of all requests that `Controller.choose` uses
            mean = step.gained / step.emitting
            self._account.gain(step.plain * (expm1(mean) if step.fair else mean))
        if self.controller is None:
            return
        plain = not step.drafts and not (step.offered and step.device)
        if plain and self._steps % _TIMED and not step.looks:
            return  # a few plain steps tell enough
        self.controller.timed(*measured(plan, output, seconds - step.asking), output.times.settled)

    def forgotten(self) -> tuple[int, ...]:
        """Return the requests whose states a device proposer is to drop, each of them once."""
        return () if self._device is None else self._device.forgotten()

    def reach(self, request: Drafted) -> int:
        """Return how many tokens' slots a device proposer's layers use."""
        return request.drafting.layers.computed + request.drafting.layers.speculated

    # ---------------------------------------------------------------------------------------------- one draft

    def _candidates(self, request: Drafted, room: int, price: float = 0.0, *, anew: bool = True) -> list[Candidate]:
        """Return all drafts, of at most `room` nodes; only those that exist already unless `anew`."""
        limit = min(self.limit(request), room)
        if limit < 1:
            return []
        try:
            return self._find(request, limit, room, self._steps, _LEAST * price, anew=anew, branch=self._branches)
        except SpanError as error:
            state, cause = request.drafting, error.__cause__
            self.faults.add("drafting", request.request_id, cause or error)
            state.longest, state.prediction, state.device = 0, None, False
            return []

    def _best(self, request: Drafted, room: int) -> Candidate:
        """Return one draft: a tree of all candidates, or the one that promises most."""
        state, params = request.drafting, request.params
        if not self._branches:
            return best_of(state.candidates, self.controller.price if self.controller is not None else 0.0)
        # A grammar may have added tokens that cost nothing to draft.
        most = max(min(self.limit(request), room), *(len(one.draft) for one in state.candidates), 0)
        return union(state.candidates, most, lambda draft: self._calibration.estimate(draft, params))
