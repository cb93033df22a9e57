"""Who guesses for whom, how much, and what is learnt from it.

The scheduler knows rows and blocks and nothing of proposers. In every step it asks three things: what a request
wants (`want`), drafts for what it was granted (`draft`), and it tells what became of them (`observe`). What a device
proposer has to catch up travels to it in the plan (`catch_up`), unread on the way.

A draft comes from the first of these that has one: the output that the request's user predicted, the guesses that a
device proposer made at the end of the step before, a host proposer now. A grammar takes from it what is forbidden
and adds what is forced. Every node gets a calibrated probability. With a controller (`lengths` "goodput") the drafts
of all requests are made first (`prepare`), and what is not worth its row is left out; a host proposer whose guesses
are left out again and again is asked less and less often.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from parlay.drafting.calibration import Calibration
from parlay.drafting.controller import Controller
from parlay.drafting.prediction import DEFAULT_LENGTH
from parlay.drafting.prediction import SOURCE as PREDICTED
from parlay.drafting.shape import SOURCE as FORCED
from parlay.drafting.shape import shape
from parlay.drafting.state import Drafted
from parlay.proposers.base import DeviceProposer, HostProposer, Proposer
from parlay.types.draft import NO_DRAFT, ROOT, Draft
from parlay.types.params import SpeculationOverride
from parlay.types.plan import CatchUp, Plan, Proposal, ProposerState, Span, SpanError, StepOutput, Verdict
from parlay.verify.tree import children

# The further layer group whose keys and values blocks may hold besides the target's.
_PROPOSER = "proposer"
_MOST_REFUSED = 4  # drafts in a row that count: after them a host proposer is asked in every 16th step


@dataclass(frozen=True, slots=True)
class Want:
    """What a request could use in a step besides its known tokens.

    Attributes:
        nodes: most nodes of a draft; the target always adds a token of its own.
        states: computed tokens to run once more, for states that the proposer lacks.
    """

    nodes: int = 0
    states: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """What drafting makes of what a request was granted.

    Attributes:
        draft: the nodes to verify.
        budget: most nodes of the draft that a device proposer may make at the end of the step.
        follow: whether its cache layers are to keep up.
        slots: cache slots behind the known tokens that all this may write to.
        states: as in `Want`.
    """

    draft: Draft = NO_DRAFT
    budget: int = 0
    follow: bool = False
    slots: int = 0
    states: int = 0


NOTHING = Offer()  # plain decoding; a proposer's gap grows


class Drafting:
    """Owns the proposer, predictions, grammars' part in drafts, and calibration.

    Attributes:
        seconds: that a host proposer took since start.
    """

    def __init__(
        self,
        proposer: Proposer,
        length: int,
        *,
        predicted_length: int | None = None,
        share_prefixes: bool = True,
        controller: Controller | None = None,
    ) -> None:
        """Begin with nothing learnt.

        Args:
            proposer: who guesses.
            length: most nodes of its drafts.
            predicted_length: most nodes of drafts from a prediction; None takes what is usual for those.
            share_prefixes: whether blocks with a proposer's keys and values may be found by other requests.
            controller: chooses lengths from measured cost and acceptance; None drafts as much as it may.
        """
        self.seconds = 0.0
        self._host = proposer if isinstance(proposer, HostProposer) else None
        self._device = isinstance(proposer, DeviceProposer)
        self._follows = proposer.cache is not None  # it wants to see every token
        self._pairs = isinstance(proposer, DeviceProposer) and proposer.pairs
        self._length = length
        self._longest = max(length, predicted_length or DEFAULT_LENGTH)
        self._share_prefixes = share_prefixes
        self._calibration = Calibration()
        self._controller = controller
        self._next_length = length

    # -------------------------------------------------------------------------------------- a request's life

    def add(self, request: Drafted) -> None:
        """Take note of a request that waits; a prediction that may not be used is dropped."""
        if not allowed(request, self._longest):
            request.drafting.prediction = None

    def admit(self, request: Drafted) -> None:
        """Show a host proposer a request that runs for the first time."""
        if self._host and allowed(request, self._length):
            self._host.admit(request.request_id, request.tokens, request.tenant)

    def adopt(self, request: Drafted) -> None:
        """Find out how much of the prefix that a request's blocks hold is there for the proposer too."""
        request.drafting.layers = ProposerState(request.table.valid_tokens(_PROPOSER, request.computed))

    def reset(self, request: Drafted) -> None:
        """Forget what lay in blocks that a request has lost."""
        state = request.drafting
        state.layers, state.pending, state.guessed, state.chosen = ProposerState(), NO_DRAFT, NO_DRAFT, NO_DRAFT

    def forget(self, request: Drafted) -> None:
        """Drop everything kept for a request that has ended."""
        request.drafting.prediction = None
        if self._host:
            self._host.forget(request.request_id)

    # ------------------------------------------------------------------------------------------------- a step

    def want(self, request: Drafted) -> Want:
        """Return what a request could use."""
        nodes = self.limit(request)
        return Want(nodes, self._unseen(request) if self._pairs and nodes > 0 else 0)

    def limit(self, request: Drafted) -> int:
        """How many nodes a draft may have; 0 or less for none."""
        longest = self._length if request.drafting.prediction is None else self._longest
        return min(allowed(request, longest), request.remaining - 1)

    def prepare(self, requests: Sequence[Drafted], emitting: int, rows: int, keys: int, room: int) -> None:
        """Choose the drafts of a step together, if lengths are chosen at all.

        Args:
            requests: that may have a draft.
            emitting: how many requests emit in this step.
            rows: that it runs without drafts.
            keys: that these read.
            room: most rows for drafts.

        Raises:
            SpanError: as `draft`.
        """
        if self._controller is None:
            return
        for request in requests:
            request.drafting.asked = False
            request.drafting.guessed = self._guess(request, min(self.limit(request), room), room)
        drafts = [request.drafting.guessed for request in requests]
        for request, nodes in zip(requests, self._controller.choose(drafts, emitting, rows, keys), strict=True):
            state = request.drafting
            state.chosen = state.guessed.select(nodes)
            # A device proposer's layers hold its guesses in order, as far as none is left out.
            intact = sum(node == place for place, node in enumerate(nodes))
            state.layers = ProposerState(state.layers.computed, min(state.layers.ahead, intact))
            if nodes:
                state.refused = 0
            elif len(state.guessed) and state.asked:
                state.refused = min(state.refused + 1, _MOST_REFUSED)
                state.rest = (1 << state.refused) - 1
        if self._device and requests:
            count = len(requests)
            self._next_length = self._controller.next_length(self._length, count, count, keys)

    def draft(self, request: Drafted, end: int, rows: int, sharing: int, next_rows: int) -> Offer:
        """Make the draft of a request that was granted rows.

        Args:
            request: who.
            end: how many of its tokens will be computed without the draft; all that are known, if it is to emit.
            rows: that are left in this step.
            sharing: how many requests share these; without a controller they do so equally.
            next_rows: most nodes of a draft in the next step.

        Raises:
            SpanError: the draft could not be made; plan again without the request.
        """
        limit = self.limit(request)
        budget = max(min(limit, self._next_length, next_rows), 0) if self._device else 0
        if request.drafting.predicted:
            budget = 0  # what is predicted need not be guessed
        # States are only to be had now, so pairs are kept even where there is to be no draft.
        follow = self._follows and (limit > 0 if self._pairs else budget > 0)
        if end < len(request.tokens) or limit < 1:
            # Of a pair's token the slot is written too.
            return Offer(NO_DRAFT, budget, follow, int(self._pairs and follow))
        if self._controller is None:
            share = rows // max(sharing, 1)
            draft = self._guess(request, min(limit, share), share)
        else:
            draft = request.drafting.chosen.cut(rows)  # others may have taken rows to catch up
        # Room for what a device proposer may write: after the token that the target adds, its own guesses.
        slots = len(draft) + (1 + budget if budget or follow else 0)
        return Offer(draft, budget, follow, slots, self._unseen(request) if follow and self._pairs else 0)

    def catch_up(self, request: Drafted, offer: Offer, end: int, states: int) -> CatchUp:
        """Return what a device proposer is told of a request; `states` as granted."""
        tokens, layers = request.tokens, request.drafting.layers
        if not offer.follow:
            return CatchUp(layers, budget=offer.budget)
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
        before, state.layers, state.pending = state.layers.computed, proposal.state, proposal.draft
        if self._share_prefixes:
            request.table.mark_valid(_PROPOSER, before, state.layers.computed)

    def observe(
        self, request: Drafted, span: Span, verdict: Verdict, emitted: Sequence[int], *, ended: bool = False
    ) -> list[tuple[float, bool]]:
        """Learn what became of a draft.

        Args:
            request: whose.
            span: its part of the plan.
            verdict: the target's.
            emitted: what of the verdict's tokens the request has taken.
            ended: whether it has ended with them.

        Returns:
            Of each node that the target judged: its probability, and whether it was accepted.
        """
        if self._host and allowed(request, self._length):  # what ends a response is worth knowing too
            self._host.observe(request.request_id, emitted)
        if request.drafting.prediction is not None and not ended:
            request.drafting.prediction.observe(emitted)
        if self._controller is None:
            return self._calibration.observe(span.draft, verdict, span.params)
        # What was left out is judged too, by what came instead: a step emits the same tokens without it.
        state = request.drafting
        whole, state.guessed, state.chosen = state.guessed, NO_DRAFT, NO_DRAFT
        path = _walk(whole, verdict.tokens)
        if path and state.asked and state.rest:  # it would have been right: it is asked sooner
            state.refused = max(state.refused - 2, 0)
            state.rest = min(state.rest, (1 << state.refused) - 1)
        if self._device and not {PREDICTED, FORCED} & set(whole.source):
            self._controller.judged(_levels(whole, path, len(verdict.tokens)))
        return self._calibration.observe(whole, Verdict(verdict.tokens, path), span.params)

    def timed(self, plan: Plan, output: StepOutput, seconds: float) -> None:
        """Learn how long a step took, `seconds` in all."""
        if self._controller is None:
            return
        spans = plan.spans
        rows = sum(len(span.tokens) + len(span.draft) + len(span.catch_up.again) for span in spans)
        # Where a gap was closed the proposer did more than draft.
        steady = all(len(span.tokens) == 1 and len(span.catch_up.behind) < 3 for span in spans)
        steady = steady and not any(span.catch_up.again for span in spans)
        lengths = [len(proposal.draft) for proposal in output.proposals] if steady else []
        drafting = output.times.propose
        self._controller.timed(rows, sum(span.end for span in spans), seconds - drafting, lengths, drafting)

    def reach(self, request: Drafted) -> int:
        """Return how many tokens' slots a device proposer's layers use."""
        return request.drafting.layers.computed + request.drafting.layers.ahead

    # ---------------------------------------------------------------------------------------------- one draft

    def _unseen(self, request: Drafted) -> int:
        """How many computed tokens' states a proposer of pairs has yet to see."""
        return request.computed - request.drafting.layers.next_state

    def _guess(self, request: Drafted, limit: int, room: int) -> Draft:
        """Return a draft of at most `limit` nodes, or of `room` where a grammar forces some."""
        try:
            draft = self._choose(request, limit)
            if request.drafting.constraint is not None:
                draft = self._shape(request, draft, min(request.remaining - 1, room))
            return self._calibration.apply(draft, request.params)
        except Exception as error:
            raise SpanError(request.request_id) from error

    def _choose(self, request: Drafted, limit: int) -> Draft:
        state = request.drafting
        if limit < 1:
            return NO_DRAFT
        if state.prediction is not None and (draft := state.prediction.propose(limit)):
            # It stands in for the guesses that a device proposer's layers hold.
            state.layers = ProposerState(state.layers.computed)
            return draft
        limit = min(limit, self._length)
        if self._host is None or limit < 1:
            return state.pending.cut(limit)
        if state.rest:
            state.rest -= 1
            return NO_DRAFT
        state.asked = True
        began = perf_counter()
        draft = self._host.propose(request.request_id, limit)
        self.seconds += perf_counter() - began
        return draft.cut(limit)

    def _shape(self, request: Drafted, draft: Draft, room: int) -> Draft:
        """Return a draft without what the request's grammar forbids, and with what it forces."""
        state = request.drafting
        assert state.constraint is not None
        draft, intact = shape(draft, state.constraint, request.output_tokens, room)
        # A device proposer's layers hold its own guesses, which other nodes may now stand in for.
        state.layers = ProposerState(state.layers.computed, min(state.layers.ahead, intact))
        return draft


def _walk(draft: Draft, tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes of a draft along which tokens go."""
    below, path = children(draft), [ROOT]
    for token in tokens:
        node = below[path[-1]].get(token)
        if node is None:
            break
        path.append(node)
    return tuple(path[1:])


def _levels(draft: Draft, path: Sequence[int], emitted: int) -> list[bool]:
    """Return whether a draft was right at depths 1, 2, ..., as far as the target judged it."""
    right = [True] * len(path)
    deeper = (ROOT, *path)[-1] in draft.parents
    return [*right, False] if deeper and emitted > len(path) else right


def allowed(request: Drafted, longest: int) -> int:
    """Return how many nodes, at most `longest`, a draft may have as far as the request's parameters go."""
    params = request.params
    if params.logits_processors and params.stop:
        return 0  # a step knows nothing of stop strings, and must not call processors for tokens beyond one
    wish = params.speculative
    if wish is None:
        return longest
    assert isinstance(wish, SpeculationOverride)
    if not wish.enabled or wish.method == "none":
        return 0
    return min(longest, wish.num_speculative_tokens or longest)
