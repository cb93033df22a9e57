"""Who guesses for whom, how much, and what is learnt from it.

The scheduler knows rows and blocks and nothing of proposers. In every step it asks three things: what a request
wants (`want`), drafts for what it was granted (`draft`), and it tells what became of them (`observe`). What a device
proposer has to catch up travels to it in the plan (`catch_up`), unread on the way.

In every step each request has the draft that promises most of these: the guesses of every host proposer, and those
that a device proposer made at the end of the step before. The output that its user predicted comes before them all.
A grammar takes from it what is forbidden and adds what is forced. Every node gets a calibrated probability. With a
controller, what is not worth its row is left out. What was not verified is judged by what came instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from parlay.drafting.bounds import own_bound, permitted, within
from parlay.drafting.calibration import Calibration
from parlay.drafting.controller import Controller
from parlay.drafting.goodput import survivals
from parlay.drafting.hosts import Faults, Host, Method, Turn, awake, check_draft
from parlay.drafting.measured import measured
from parlay.drafting.offers import Offer, Want
from parlay.drafting.prediction import DEFAULT_LENGTH
from parlay.drafting.shape import shape
from parlay.drafting.state import Candidate, Drafted, DraftState, Why, best_of
from parlay.proposers.base import DeviceProposer, HostProposer
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.plan import CatchUp, Plan, Proposal, ProposerState, Span, SpanError, StepOutput, Verdict
from parlay.verify.tree import levels, walk

MOST_HELD = 512  # states of a request that a device proposer holds while it is off; beyond, it drops them
MOST_HELD_TOGETHER = 8192  # and of all requests
_THINKS, _TIMED = 8, 4  # steps
_UNSEEN = 16  # tokens that a proposer may follow for one that the target has to run once more
# The further layer group whose keys and values blocks may hold besides the target's.
_PROPOSER = "proposer"


class Drafting:
    """Owns the proposers, predictions, grammars' part in drafts, calibration and the controller.

    Attributes:
        faults: of the proposers.
        controller: what chooses lengths; None where they are fixed.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        *,
        predicted_length: int | None = None,
        share_prefixes: bool = True,
        controller: Controller | None = None,
        most_nodes: Callable[[int], int | None] = lambda batch_size: None,
        remember: bool = True,
        vocab_size: int | None = None,
    ) -> None:
        """Begin with nothing learnt.

        Args:
            methods: who guesses; at most one of them on the device.
            predicted_length: most nodes of drafts from a prediction; None takes what is usual for those.
            share_prefixes: whether blocks with a proposer's keys and values may be found by other requests.
            controller: chooses lengths from measured cost and acceptance; None drafts as much as it may.
            most_nodes: of a draft, by how many requests emit at once; None for no further limit.
            remember: whether proposers may learn from one request for another.
            vocab_size: ids of guesses are below; None to take them as they are.
        """
        self.faults = Faults()
        self.controller = controller
        self._hosts = [
            Host(method, vocab_size, self.faults.add)
            for method in methods
            if isinstance(method.proposer, HostProposer)
        ]
        self._device = next((method for method in methods if isinstance(method.proposer, DeviceProposer)), None)
        device = self._device.proposer if self._device else None
        self._follows = device is not None and device.cache is not None  # it wants to see every token
        self._pairs = isinstance(device, DeviceProposer) and device.pairs
        self._lengths = {method.name: method.length for method in methods}
        self._longest = max([*self._lengths.values(), predicted_length or DEFAULT_LENGTH])
        self._share_prefixes = share_prefixes
        self._most_nodes, self._bound = most_nodes, most_nodes(1)
        self._remember = remember
        self._vocab_size = vocab_size
        self._calibration = Calibration()
        self._next_length = self._device.length if self._device else 0
        self._only: Drafted | None = None  # whose drafts a device proposer is tried with
        self._forgotten: list[int] = []
        self._steps = self._held = 0

    @property
    def seconds(self) -> float:
        """What host proposers took since start."""
        return sum(host.seconds for host in self._hosts)

    # -------------------------------------------------------------------------------------- a request's life

    def add(self, request: Drafted) -> None:
        """Take note of a request that waits, and of who may guess for it."""
        state, names = request.drafting, permitted(request, tuple(self._lengths))
        if names is None:
            state.prediction, names = None, ()
        state.longest = within(request, max((self._lengths[name] for name in names), default=0))
        state.hosts = tuple(host for host in self._hosts if host.name in names)
        state.device = self._device is not None and self._device.name in names

    def admit(self, request: Drafted) -> None:
        """Show host proposers a request that runs for the first time."""
        tenant = request.tenant if self._remember else None
        hosts, request_id = request.drafting.hosts, request.request_id
        request.drafting.turns = tuple((host, host.admit(request_id, request.tokens, tenant)) for host in hosts)

    def adopt(self, request: Drafted) -> None:
        """Find out how much of the prefix that a request's blocks hold is there for the proposer too."""
        request.drafting.layers = ProposerState(request.table.valid_tokens(_PROPOSER, request.computed))

    def reset(self, request: Drafted) -> None:
        """Forget what lay in blocks that a request has lost."""
        state = request.drafting
        if state.layers.held:
            self._forgotten.append(request.request_id)
        state.layers, state.pending = ProposerState(), NO_DRAFT
        _clear(state)

    def lose_step(self, request: Drafted) -> None:
        """Take note that a step was lost, in which a device proposer may have gone on all the same."""
        if request.drafting.layers.held:
            self._forgotten.append(request.request_id)
        request.drafting.layers = ProposerState(request.drafting.layers.computed)

    def forget(self, request: Drafted) -> None:
        """Drop everything kept for a request that has ended."""
        request.drafting.prediction = None
        if request.drafting.layers.held:
            self._forgotten.append(request.request_id)
        for host in request.drafting.hosts:
            host.forget(request.request_id)

    # ------------------------------------------------------------------------------------------------- a step

    def want(self, request: Drafted) -> Want:
        """Return what a request could use."""
        nodes = self.limit(request)
        lacks = self._pairs and request.drafting.device and nodes > 0 and self._next_length > 0
        return Want(nodes, self._unseen(request) if lacks else 0)

    def limit(self, request: Drafted) -> int:
        """How many nodes a draft may have; 0 or less for none."""
        state = request.drafting
        longest = state.longest if state.prediction is None else within(request, self._longest)
        if self._bound is not None and own_bound(request) is None:
            longest = min(longest, self._bound)
        return min(longest, request.remaining - 1)

    def prepare(self, requests: Sequence[Drafted], emitting: int, rows: int, keys: int, room: int) -> None:
        """Make the drafts of a step.

        Args:
            requests: that may have one.
            emitting: how many requests emit in this step.
            rows: that it runs without drafts.
            keys: that these read.
            room: most rows for drafts; without a controller each request has an equal share.

        Raises:
            SpanError: as `draft`.
        """
        self._bound, self._steps = self._most_nodes(emitting), self._steps + 1
        self._held = sum(request.drafting.layers.held for request in requests) if self._pairs else 0
        control, left = self.controller, room
        asking = control is None or control.asks(emitting, rows, keys)
        price = control.price if control else 0.0
        for place, request in enumerate(requests):
            state = request.drafting
            _clear(state)
            share = room if control else left // (len(requests) - place)
            state.why = Why.NO_GUESS if asking else Why.EXPENSIVE
            others = asking and (state.prediction or state.constraint or awake(state.turns))
            if others or state.pending.tokens:  # which is judged all the same, or nothing would be learnt of it
                state.candidates = self._candidates(request, share, asking)
            if asking:
                state.best = best_of(state.candidates, price)
                state.why = Why.UNLIKELY if state.best is not None else state.why
            if state.best is None:
                state.layers = replace(state.layers, ahead=0) if state.layers.ahead else state.layers
            elif control is None:
                self._take(state, range(min(len(state.best.draft), share)))
                left -= len(state.chosen)
        if control is None:
            return
        if asking:
            some = [request.drafting for request in requests if request.drafting.best is not None]
            chances = [state.best.chances for state in some if state.best is not None]
            if some:
                for state, nodes in zip(some, control.choose(chances, emitting, rows, keys), strict=True):
                    self._take(state, nodes)
        # While a device proposer is off, whether to try it is thought about now and then only.
        if self._device is not None and requests and (self._next_length or self._steps % _THINKS == 0):
            gain = control.device_gain
            free = [request for request in requests if self._drafts_on_device(request, gain)]
            least = min(free, key=lambda one: self._lag(one) + _UNSEEN * self._lacking(one), default=None)
            behind, again = (self._lag(least), self._lacking(least)) if least else (0, 0)
            most = min(self._device.length, max(map(self.limit, free), default=0))
            passed = 1 if self._next_length else _THINKS
            self._next_length = control.next_length(most, len(free), emitting, keys, behind, again, passed)
            self._only = least if control.trying else None

    def draft(self, request: Drafted, end: int, rows: int, next_rows: int) -> Offer:
        """Return the draft of a request that was granted rows.

        Args:
            request: who.
            end: how many of its tokens will be computed without the draft; all that are known, if it is to emit.
            rows: that are left in this step.
            next_rows: most nodes of a draft in the next step.
        """
        state, limit = request.drafting, self.limit(request)
        budget = 0
        if state.device and self._next_length and not state.predicted:  # what is predicted need not be guessed
            budget = max(min(limit, self._next_length, next_rows), 0)
            if self._only not in (None, request) or (
                self.controller is not None and not self._drafts_on_device(request, self.controller.device_gain)
            ):
                budget = 0
        follow = state.device and self._follows and (limit if self._pairs and not self.controller else budget) > 0
        # States are only to be had now, so they are held while there is no draft.
        hold = self._pairs and state.device and not follow and limit > 0 and not self._unseen(request)
        more = end - request.computed
        if hold and (state.layers.held + more > MOST_HELD or self._held + more > MOST_HELD_TOGETHER):
            hold = False
            self._forgotten.append(request.request_id)
            state.layers = replace(state.layers, held=0)
        self._held += more if hold else 0
        if limit < 1:
            state.why = Why.NOT_ALLOWED
        if end < len(request.tokens) or limit < 1:
            # Of a pair's token the slot is written too.
            return Offer(NO_DRAFT, budget, follow, hold, int(self._pairs and follow))
        draft = state.chosen.cut(rows)  # others may have taken rows to catch up
        # Room for what a device proposer may write: after the token that the target adds, its own guesses.
        slots = len(draft) + (1 + budget if budget or follow else 0)
        return Offer(draft, budget, follow, hold, slots, self._unseen(request) if follow and self._pairs else 0)

    def catch_up(self, request: Drafted, offer: Offer, end: int, states: int) -> CatchUp:
        """Return what a device proposer is told of a request; `states` as granted."""
        tokens, layers = request.tokens, request.drafting.layers
        if not offer.follow:
            return CatchUp(layers, budget=offer.budget, hold=offer.hold)
        followed = end + (self._pairs and end < len(tokens))
        return CatchUp(
            layers,
            behind=tuple(tokens[layers.computed : followed]),
            again=tuple(tokens[layers.next_state : layers.next_state + states]),
            budget=offer.budget,
            follow=True,
        )

    def advance(self, request: Drafted, proposal: Proposal) -> None:
        """Take what a device proposer made of a step."""
        state = request.drafting
        before, state.layers, state.pending = state.layers.computed, proposal.state, NO_DRAFT
        if not state.device:
            return
        state.pending, error = proposal.draft, proposal.error
        if error is None and proposal.draft.tokens:
            try:
                check_draft(proposal.draft, self._vocab_size)
            except ValueError as found:
                error = found
        if error is not None and self._device is not None:
            state.device, state.pending = False, NO_DRAFT
            self.faults.add(self._device.name, request.request_id, error)
        elif self._share_prefixes:
            request.table.mark_valid(_PROPOSER, before, state.layers.computed)

    def observe(
        self, request: Drafted, span: Span, verdict: Verdict, emitted: Sequence[int], *, ended: bool = False
    ) -> list[tuple[float, bool]]:
        """Learn what became of a request's drafts, also of those that were not verified.

        Args:
            request: whose.
            span: its part of the plan.
            verdict: the target's.
            emitted: what of the verdict's tokens the request has taken.
            ended: whether it has ended with them.

        Returns:
            Of each verified node that the target judged: its probability, and whether it was accepted.
        """
        state, verified = request.drafting, []
        for host, turn in state.turns:  # what ends a response is worth knowing too
            host.observe(request.request_id, turn, emitted)
        if state.prediction is not None and not ended:
            state.prediction.observe(emitted)
        for candidate in state.candidates:
            draft, path = candidate.draft, walk(candidate.draft, verdict.tokens)
            judged = self._calibration.observe(draft, Verdict(verdict.tokens, path), span.params)
            if candidate is state.best and draft.probs is not None:
                taken = state.taken[: len(span.draft)]
                verified = [(draft.probs[node], right) for node, right in judged if node in taken]
            if candidate.turn is not None and candidate.turn.rest and len(path) > len(verdict.path):
                candidate.turn.missed()
            if candidate.pending and self.controller is not None:
                self.controller.judged(levels(draft, path, len(verdict.tokens)))
        _clear(state)
        return verified

    def timed(self, plan: Plan, output: StepOutput, seconds: float) -> None:
        """Learn how long a step took, `seconds` in all."""
        if self.controller is None or output.times.recorded:
            return  # a recording says nothing of what such steps take from now on
        if self._steps % _TIMED and not self._next_length and not any(span.draft.tokens for span in plan.spans):
            return  # of plain steps a few tell enough
        self.controller.timed(*measured(plan, output, seconds))

    def forgotten(self) -> tuple[int, ...]:
        """Return the requests of which a device proposer is to drop what it holds, each of them once."""
        gone, self._forgotten = tuple(self._forgotten), []
        return gone

    def reach(self, request: Drafted) -> int:
        """Return how many tokens' slots a device proposer's layers use."""
        return request.drafting.layers.computed + request.drafting.layers.ahead

    # ---------------------------------------------------------------------------------------------- one draft

    def _unseen(self, request: Drafted) -> int:
        """How many computed tokens' states a proposer of pairs has yet to see."""
        return request.computed - request.drafting.layers.next_state

    def _lacking(self, request: Drafted) -> int:
        """How many tokens the target has to run once more for their states."""
        return self._unseen(request) if self._pairs else 0

    def _lag(self, request: Drafted) -> int:
        """How many tokens a device proposer has to follow before it can draft for a request."""
        layers = request.drafting.layers
        return layers.held if self._pairs else max(request.computed - layers.computed, 0) if self._follows else 0

    def _candidates(self, request: Drafted, room: int, asking: bool) -> list[Candidate]:
        """Return all drafts there are, of at most `room` nodes; only what is there already unless `asking`."""
        state, limit = request.drafting, min(self.limit(request), room)
        turns = state.turns if asking else ()
        try:
            if limit < 1:
                drafts: list[tuple[Draft, Turn | None, bool]] = []
            elif asking and state.prediction is not None and (draft := state.prediction.propose(limit)):
                drafts = [(draft, None, False)]
            else:
                drafts = [(host.ask(request.request_id, turn, limit), turn, False) for host, turn in turns]
                drafts.append((state.pending.cut(limit), None, True))
            found = [self._candidate(request, *one, room) for one in drafts if one[0].tokens]
            if not found and state.constraint is not None:  # which may force some
                found = [self._candidate(request, NO_DRAFT, None, False, room)]
            return [candidate for candidate in found if candidate.draft.tokens]
        except Exception as error:
            raise SpanError(request.request_id) from error

    def _candidate(self, request: Drafted, draft: Draft, turn: Turn | None, pending: bool, room: int) -> Candidate:
        """Return a draft with what a grammar makes of it, and with calibrated probabilities."""
        constraint, own = request.drafting.constraint, pending
        intact = len(draft)
        if constraint is not None:
            draft, intact = shape(draft, constraint, request.output_tokens, min(request.remaining - 1, room))
            own = own and intact == len(draft)
        draft = self._calibration.apply(draft, request.params)
        return Candidate(draft, survivals(draft), turn, intact if pending else 0, own)

    def _take(self, state: DraftState, nodes: Sequence[int]) -> None:
        """Choose nodes of a request's best draft."""
        assert state.best is not None
        state.taken, state.chosen = nodes, state.best.draft.select(nodes)
        state.why = Why.NO_ROOM if nodes else state.why
        for candidate in state.candidates:
            if candidate.turn is not None:
                if candidate is state.best and nodes:
                    candidate.turn.used()
                else:
                    candidate.turn.unused()
        # A device proposer's layers hold its guesses in order, as far as none is left out.
        intact = sum(node == place for place, node in enumerate(nodes))
        state.layers = replace(state.layers, ahead=min(state.layers.ahead, intact, state.best.ahead))

    def _drafts_on_device(self, request: Drafted, gain: float) -> bool:
        """Whether a device proposer is to guess for a request: it is loaded for it, and nobody else does better."""
        state = request.drafting
        if not state.device or state.predicted:
            return False
        best = state.best
        return best is None or best.pending or not state.chosen.tokens or sum(best.chances) < gain


def _clear(state: DraftState) -> None:
    """Forget the drafts of a step."""
    state.candidates, state.best, state.taken, state.chosen = [], None, (), NO_DRAFT
