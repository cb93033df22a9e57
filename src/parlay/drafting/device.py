"""A device proposer as drafting sees it: the length of its next drafts, and what its cache layers have to catch up.

Its drafts are made on the device at the end of a step, for the next one. Its cache layers keep up with the text while
it drafts and fall behind while it is off. A head that pairs tokens with the target's states cannot get these later,
so it holds them beside its layers, up to a bound; beyond, it drops them, and the target has to run those tokens once
more before the head can draft for that request again. Where its drafts are far from paying, it holds the states of
one request in sixteen, which is enough to try it, and drops the others. A request's held states are those of all
computed tokens that its layers have not seen, so nobody has to count them in a step.
"""

from collections.abc import Sequence
from dataclasses import replace

from parlay.drafting.controller import Controller
from parlay.drafting.hosts import Faults, Method, check_draft
from parlay.drafting.offers import HOLD, NOTHING, Offer
from parlay.drafting.state import Drafted
from parlay.proposers.base import DeviceProposer
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.plan import NO_PROPOSAL, CatchUp, Proposal, ProposerState

MOST_HELD = 512  # states of a request that are held while the proposer is off
MOST_HELD_TOGETHER = 8192  # and of all requests
THINKS = 8  # while it is off, a try is considered once in so many steps
_SCOUTS = 16  # requests of which one is held where drafts are far from paying
_FAR = 256  # most tokens that an answer is expected to have left: many end early
_NEAR = 16  # tokens that it may always be behind
_TRIED = 4  # most requests of one try: with several it tells as much as several tries, and costs less
_LEFT = 0.06  # assumed saving, in tokens for each that is left to emit, where drafts do not seem to pay
_UNSEEN = 16  # tokens that a proposer may process for one that the target has to run once more
_ROWS = 16  # of a level of drafts with branches, all requests together; beyond, drafts are chains
_BRANCHING = 0.3  # price of a row beyond which a second child is hardly worth one
# The further layer group whose keys and values blocks may hold besides the target's.
_PROPOSER = "proposer"


class Device:
    """One device proposer, and what is planned for it.

    Attributes:
        name: of the method.
        length: most nodes of its drafts.
        next_length: most nodes of those that it makes at the end of this step; 0 while it is off.
    """

    def __init__(
        self,
        method: Method,
        controller: Controller | None,
        faults: Faults,
        *,
        share_prefixes: bool,
        vocab_size: int | None,
    ) -> None:
        """Begin with drafts of full length.

        Args:
            method: with a device proposer.
            controller: chooses lengths; None for as many nodes as there may be.
            faults: counts and logs failures.
            share_prefixes: whether blocks with its keys and values may be found by other requests.
            vocab_size: draft tokens have ids below this; None skips the check.
        """
        assert isinstance(method.proposer, DeviceProposer)
        self.name, self.length = method.name, method.length
        self.next_length = method.length
        self._width, self._nodes, self._shaped = method.width, method.nodes, method.shaped
        self._next_width = method.width
        self._follows = method.proposer.cache is not None  # it has to process every token
        self._pairs = method.proposer.pairs
        self._control, self._faults = controller, faults
        self._share_prefixes, self._vocab_size = share_prefixes, vocab_size
        self._tried: Sequence[Drafted] | None = None  # the requests of a try; None where it is no try
        self._forgotten: list[int] = []
        self._saving = 0.0  # share of the time that drafts are expected to save
        self._begun = self._together = 0  # requests that could be held; states of all, as last counted

    # -------------------------------------------------------------------------------------- a request's life

    def adopt(self, request: Drafted) -> None:
        """Record how much of the prefix in a request's blocks is valid for the proposer too."""
        request.drafting.layers = ProposerState(request.table.valid_tokens(_PROPOSER, request.computed))

    def drop(self, request: Drafted, *, layers: bool = True) -> None:
        """Drop the states held for a request and, if `layers`, what its cache layers hold."""
        self._release(request)
        state = request.drafting
        state.layers = ProposerState(0 if layers else state.layers.computed)

    def end(self, request: Drafted) -> None:
        """Drop everything of a request that has ended, in the proposer too."""
        self.drop(request)
        if request.request_id not in self._forgotten:
            self._forgotten.append(request.request_id)

    def restart(self, controller: Controller | None) -> None:
        """Begin anew with another controller."""
        self._control, self.next_length, self._next_width = controller, self.length, self._width
        self._tried, self._saving, self._begun, self._together = None, 0.0, 0, 0

    def reset(self, controller: Controller | None) -> None:
        """Do that, and keep nothing of any request: neither does the proposer."""
        self.restart(controller)
        self._forgotten = []

    def forgotten(self) -> tuple[int, ...]:
        """Return the requests whose states the proposer is to drop, each of them once."""
        gone, self._forgotten = tuple(self._forgotten), []
        return gone

    # ------------------------------------------------------------------------------------------------- a step

    def thinks(self, step: int) -> bool:
        """Whether the next length is chosen anew in this step."""
        return self.next_length > 0 or step % THINKS == 0

    def states(self, request: Drafted) -> int:
        """How many tokens the target is to run once more for their states: all that lack them, if that pays."""
        lacking = self._lacking(request)
        return lacking if lacking and (self._control is None or self._worth(request, self._saving or _LEFT)) else 0

    def choose(self, requests: Sequence[Drafted], limits: Sequence[int], emitting: int, keys: int) -> None:
        """Choose the next length from the cost and gain of drafting for requests with these limits."""
        control = self._control
        assert control is not None
        if self._pairs:
            self._bound(requests)
        every = [
            (request, limit) for request, limit in zip(requests, limits, strict=True) if self._may_draft_for(request)
        ]
        most = min(self.length, max((limit for _, limit in every), default=0))
        self._saving = control.saving(most, len(every), emitting, keys)
        ready = [one for one in every if self._worth(one[0], self._saving)]
        free = ready or [one for one in every if self._worth(one[0], _LEFT)]
        nearest = sorted((self._distance(one[0]), place) for place, one in enumerate(free))[:_TRIED]
        near = [free[place][0] for distance, place in nearest if distance <= nearest[0][0] + _NEAR]
        behind, again = sum(map(self._lag, near)), sum(map(self._lacking, near))
        most = min(self.length, max((limit for _, limit in free), default=0))
        passed = 1 if self.next_length else THINKS
        steps = emitting, keys, len(near), behind, again, passed
        self.next_length = control.next_length(most, len(free), *steps, ready=bool(ready))
        self._tried = near if control.trying else None
        if not self._shaped:
            worth = control.branches and control.price < _BRANCHING and self._width * len(free) <= _ROWS
            self._next_width = self._width if worth else 1

    def offer(self, request: Drafted, draft: Draft, limit: int, end: int, next_rows: int) -> Offer:
        """Return the proposer's part in a step.

        Args:
            request: the one to draft for.
            draft: the one that is verified in the step.
            limit: most nodes of a draft.
            end: how many of its tokens will be computed without the draft.
            next_rows: most nodes of a draft in the next step.
        """
        state, budget = request.drafting, 0
        if self.next_length and not state.predicted and self._drafts_for(request):
            tried = self._tried is None or request in self._tried
            budget = max(min(limit, self.next_length, next_rows), 0) if tried else 0
        elif self._control and not draft.tokens:  # as in most steps
            return HOLD if self._pairs and limit > 0 and self._holds(request, end) else NOTHING
        follow = self._follows and (limit if self._pairs and not self._control else budget) > 0
        # States are available only now, so they are held while there is no draft.
        hold = self._pairs and not follow and limit > 0 and self._holds(request, end)
        if not (draft.tokens or budget or follow):
            return HOLD if hold else NOTHING
        if end < len(request.tokens) or limit < 1:
            # A pair is written to the slot of its token, which comes after the state.
            return Offer(NO_DRAFT, budget, follow, hold, int(self._pairs and follow))
        # Room for what the proposer may write: the token that the target adds, then its own nodes.
        slots = len(draft) + (1 + budget if budget or follow else 0)
        states = self._lacking(request) if follow else 0
        if budget and self._next_width > 1:
            nodes = min(limit, self._nodes, next_rows)
            return Offer(draft, budget, follow, hold, slots, states, self._next_width, nodes)
        return Offer(draft, budget, follow, hold, slots, states)

    def catch_up(self, request: Drafted, offer: Offer, end: int, states: int) -> CatchUp:
        """Return the proposer's input for a request; `states` as granted."""
        tokens, layers, holding = request.tokens, request.drafting.layers, request.drafting.holding
        if offer.hold and holding:
            return holding
        if not offer.follow:
            self._release(request)  # there is no room for a draft, or there will never be one
            return CatchUp(layers, budget=offer.budget, width=offer.width, nodes=offer.nodes)
        if holding:
            layers = replace(layers, held=self._held(request))
        followed = end + (self._pairs and end < len(tokens))
        return CatchUp(
            layers,
            unseen=tuple(tokens[layers.computed : followed]),
            rerun=tuple(tokens[layers.next_state : layers.next_state + states]),
            budget=offer.budget,
            width=offer.width,
            nodes=offer.nodes,
            follow=True,
        )

    def advance(self, request: Drafted, proposal: Proposal) -> None:
        """Take a proposer's result of a step."""
        state = request.drafting
        state.pending = NO_DRAFT
        if proposal is NO_PROPOSAL:
            return
        before, state.layers, state.holding = state.layers.computed, proposal.state, None
        if not state.device:
            return
        error, lasting = proposal.error, proposal.lasting
        if error is None and proposal.draft.tokens:
            try:
                check_draft(proposal.draft, self._vocab_size)
                state.pending = proposal.draft
            except ValueError as found:
                error = found
        if error is not None:
            state.device = not lasting
            self._faults.add(self.name, request.request_id, error, lasting=lasting)
        elif self._share_prefixes and before != state.layers.computed:
            request.table.mark_valid(_PROPOSER, before, state.layers.computed)

    # --------------------------------------------------------------------------------------------- one request

    def _holds(self, request: Drafted, end: int) -> bool:
        """Whether a request's states up to those of `end` tokens are held."""
        state, more = request.drafting, end - request.computed
        if state.holding and more == 1:
            return True  # as in most steps; `_bound` drops them again
        if not state.holding:
            if self._lacking(request):
                return False
            self._begun += 1
            state.scout = self._begun % _SCOUTS == 0 or (self._control is not None and self._control.affords)
        fits = self._held(request) + more <= MOST_HELD and self._together + more <= MOST_HELD_TOGETHER
        if not (fits and self._wants(request)):
            return False
        self._together += more
        state.holding = state.holding or CatchUp(state.layers, hold=True)
        return True

    def _wants(self, request: Drafted) -> bool:
        """Whether a request's states may be of use."""
        return request.drafting.scout or self._control is None or self._control.hopeful

    def _bound(self, requests: Sequence[Drafted]) -> None:
        """Drop the states of requests for which they are too many, or of no use."""
        self._together = 0
        for request in requests:
            held = self._held(request)
            if held > min(MOST_HELD, MOST_HELD_TOGETHER - self._together) or not self._wants(request):
                self._release(request)
            else:
                self._together += held

    def _release(self, request: Drafted) -> None:
        """Drop the states held for a request."""
        if request.drafting.holding:
            request.drafting.holding = None
            self._forgotten.append(request.request_id)

    def _held(self, request: Drafted) -> int:
        """How many states are held for a request."""
        return request.computed - request.drafting.layers.next_state if request.drafting.holding else 0

    def _lacking(self, request: Drafted) -> int:
        """How many computed tokens have states that a head of pairs has not seen."""
        apart = self._pairs and not request.drafting.holding
        return request.computed - request.drafting.layers.next_state if apart else 0

    def _worth(self, request: Drafted, saving: float) -> bool:
        """Whether a request has enough left for drafts that save this share to be worth catching up for."""
        lacking = self._lacking(request)
        behind = len(request.tokens) - request.drafting.layers.computed if self._follows else 0
        if not lacking and behind <= _NEAR:
            return True
        assert self._control is not None
        return self._control.lost(lacking, behind) <= saving * min(request.remaining, _FAR)

    def _lag(self, request: Drafted) -> int:
        """How many tokens the proposer has to process before it can draft for a request."""
        if self._pairs:
            return self._held(request)
        return max(request.computed - request.drafting.layers.computed, 0) if self._follows else 0

    def _distance(self, request: Drafted) -> int:
        """The cost of catching up before it can draft for a request, in tokens to process."""
        return self._lag(request) + _UNSEEN * self._lacking(request)

    def _drafts_for(self, request: Drafted) -> bool:
        """Whether it is to draft for a request, possibly after catching up."""
        if not self._may_draft_for(request):
            return False
        return self._control is None or request in (self._tried or ()) or self._worth(request, self._saving)

    def _may_draft_for(self, request: Drafted) -> bool:
        """Whether it is loaded for a request, and no other draft is better."""
        state = request.drafting
        if not state.device or state.predicted:
            return False
        if self._control is None:
            return True
        best, gain = state.best, self._control.device_gain
        return best is None or best.speculated > 0 or not state.chosen.tokens or sum(best.chances) < gain
