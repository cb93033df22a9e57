"""A device proposer as drafting sees it: the length of its next drafts, and what its cache layers have to catch up.

Its drafts are made on the device at the end of a step, for the next one. Its cache layers keep up with the text while
it drafts and fall behind while it is off. A head that pairs tokens with the target's states cannot get these later:
the target has to run those tokens once more before the head can draft for that request again, if that is worth it.
For a trial it therefore follows a new request from its first token on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from parlay.drafting.host_drafts import Faults, LoadedProposer, check_draft
from parlay.drafting.policy import Policy
from parlay.drafting.state import PLAIN, DraftedRequest, StepPart
from parlay.proposers.base import DeviceProposer
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.plan import NO_PROPOSAL, CatchUp, Proposal, ProposerState

TRIAL_INTERVAL = 16  # while it is off, a trial is considered once in so many steps: that takes time too
_FAR = 256  # most tokens that an answer is expected to have left: many end early
_NEAR = 16  # tokens that it may always be behind
_TRIED = 4  # most requests of one trial: with several it tells as much as several trials, and costs less
_LEFT = 0.06  # assumed saving, in tokens for each that is left to emit, where drafts do not seem to pay
_UNSEEN = 16  # tokens that a proposer may process for one that the target has to run once more
_ROWS = 16  # most rows of a level of drafts with branches, all requests together; beyond, drafts are chains
_BRANCHING = 0.3  # price of a row beyond which a second child is hardly worth one
# The further layer group whose keys and values blocks may hold besides the target's.
_PROPOSER = "proposer"


class DeviceDrafts:
    """One device proposer, and what is planned for it.

    Attributes:
        name: name of the method.
        length: most nodes of its drafts.
        next_length: most nodes of those that it makes at the end of this step; 0 while it is off.
    """

    def __init__(
        self,
        method: LoadedProposer,
        policy: Policy | None,
        faults: Faults,
        *,
        share_prefixes: bool,
        vocab_size: int | None,
    ) -> None:
        """Start with drafts of full length.

        Args:
            method: method with a device proposer.
            policy: policy that chooses lengths; None drafts as many nodes as there may be.
            faults: counter and log of failures.
            share_prefixes: whether blocks with its keys and values may be found by other requests.
            vocab_size: bound of draft tokens' ids, which are checked; None skips the check.
        """
        assert isinstance(method.proposer, DeviceProposer)
        self.name, self.length = method.name, method.length
        self._width, self._nodes, self._shaped = method.width, method.nodes, method.shaped
        self._follows = method.proposer.cache is not None  # it has to process every token
        self._pairs, self._reruns = method.proposer.pairs, method.proposer.reruns
        self._recurrent = method.proposer.recurrent
        self._faults, self._vocab_size = faults, vocab_size
        own_blocks = method.proposer.own_blocks
        self._share_prefixes, self._share_own = share_prefixes and not own_blocks, share_prefixes and own_blocks
        self._forgotten: list[int] = []
        self.restart(policy)

    def restart(self, policy: Policy | None) -> None:
        """Start over with another policy."""
        self._policy = policy
        self.next_length = self._length = self.length  # `next_length` is 0 in a pause but its last step
        self._next_width = self._width
        self._tried: Sequence[DraftedRequest] | None = None  # the requests of a trial; None where it is no trial
        self._saving: float | None = None  # share of the time that drafts are expected to save, once known

    # -------------------------------------------------------------------------------------- a request's life

    def admit(self, request: DraftedRequest) -> None:
        """Register a request that runs for the first time: a head that is off may follow it.

        That is for a trial, or because drafts pay, and only those requests that run already lack too much.
        """
        lengths = self._policy.device_length if self._policy is not None else None
        if lengths is None or not self._pairs or self._length or not request.drafting.device:
            return
        pays = self._saving is not None and self._saving > 0 and self._worth(request, self._saving)
        request.drafting.scout = pays or (request.remaining > 1 and lengths.scouts(self._catching_up(request)))

    def adopt(self, request: DraftedRequest) -> None:
        """Record how much of the prefix in a request's blocks is valid for the proposer too."""
        valid = request.table.valid_tokens(_PROPOSER, request.computed)
        request.drafting.layers = ProposerState(request.table.adopt_draft(valid))

    def drop(self, request: DraftedRequest, *, layers: bool = True) -> None:
        """Drop what its cache layers hold of a request, if `layers`, or only its draft tokens there."""
        state = request.drafting
        state.layers = ProposerState() if layers else replace(state.layers, speculated=0)
        state.scout = False
        if layers:
            request.table.release_draft()

    def end(self, request: DraftedRequest) -> None:
        """Drop everything of a request that has ended, in the proposer too."""
        self.drop(request)
        self._forgotten.append(request.request_id)

    def forgotten(self) -> tuple[int, ...]:
        """Return the requests whose states the proposer is to drop, each of them once."""
        gone, self._forgotten = tuple(dict.fromkeys(self._forgotten)), []
        return gone

    # ------------------------------------------------------------------------------------------------- a step

    def chooses_length(self, step: int) -> bool:
        """Whether the next length is chosen anew in this step."""
        return self._length > 0 or step % TRIAL_INTERVAL == 0

    def proposer_idle(self, step: int, requests: Iterable[DraftedRequest]) -> bool:
        """Whether it is off in a step, and nothing of these requests waits for it or is its own."""
        if self._length or self.next_length or self.chooses_length(step):
            return False
        states = (request.drafting for request in requests)
        return not any(state.scout or state.pending.tokens or state.layers.speculated for state in states)

    def rerun(self, request: DraftedRequest) -> int:
        """How many tokens the target is to run once more for their states: all that lack them, if that pays."""
        lacking = self._lacking(request)
        if lacking <= 0 or not self._length or self._pauses or not (self._tried is None or request in self._tried):
            return 0
        return lacking if self._worth(request, self._saving or _LEFT) else 0

    def choose(self, requests: Sequence[DraftedRequest], limits: Sequence[int], emitting: int, keys: int) -> None:
        """Choose the next length from the cost and gain of drafting for requests with these limits."""
        assert self._policy is not None
        lengths = self._policy.device_length
        assert lengths is not None
        if self._policy.measuring.left > 1:
            self.next_length = 0
            return
        pairs = zip(requests, limits, strict=True)
        every = [(request, limit) for request, limit in pairs if self._may_draft_for(request)]
        most = min(self.length, max((limit for _, limit in every), default=0))
        if every and most > 0 and lengths.cost.timed:
            self._saving = lengths.best(self.length, len(every), emitting, keys)[1]
        ready = [one for one in every if self._worth(one[0], self._saving or 0.0)]
        free = ready or [one for one in every if self._worth(one[0], _LEFT)]
        if not (free or self._pairs):  # the price of a trial includes catching up
            free = every
        nearest = sorted((self._distance(one[0]), place) for place, one in enumerate(free))[:_TRIED]
        trying = [free[place][0] for distance, place in nearest if distance <= nearest[0][0] + _NEAR]
        behind, again = sum(map(self._lag, trying)), sum(map(self._lacking, trying))
        most = min(self.length, max((limit for _, limit in free), default=0))
        passed = 1 if self._length else TRIAL_INTERVAL
        rerun = self._policy.extra(emitting, again)
        steps = emitting, keys, len(trying), behind, rerun, passed
        self.next_length = self._length = lengths.choose(most, len(free), *steps, ready=bool(ready))
        self._tried = trying if lengths.trial else None
        if not self._length:  # what was processed for a trial that is not made is lost
            for request in requests:
                request.drafting.scout &= len(request.tokens) <= len(request.prompt_tokens)
        if not self._shaped:
            policy = self._policy
            worth = policy.branches and policy.price < _BRANCHING and self._width * len(free) <= _ROWS
            self._next_width = self._width if worth else 1

    def part(
        self, request: DraftedRequest, draft: Draft, limit: int, end: int, rows: int, left: int, next_rows: int
    ) -> StepPart:
        """Return a request's part in a step, for which its blocks have room.

        Args:
            request: the request to draft for.
            draft: draft that is verified in the step.
            limit: most nodes of a draft.
            end: number of the request's tokens that the step will have computed, without the draft.
            rows: number of rows set apart to run tokens once more.
            left: number of further rows that may run tokens once more.
            next_rows: most nodes of a draft in the next step.
        """
        state, budget, follow = request.drafting, 0, False
        if limit > 0 and not self._pauses and (state.scout or self._begins(request)):
            tried = self._tried is None or request in self._tried
            budget = max(min(limit, self.next_length, next_rows), 0) if tried else 0
            follow = self._follows and (budget > 0 or (self._pairs and (tried or state.scout)))
        elif limit > 0 and self._policy is None:  # it keeps up for later drafts: no policy weighs what that costs
            follow = self._pairs
        if not (budget or follow):
            fits = draft.tokens and request.table.grow(min(end + len(draft), request.longest))
            return StepPart(draft, CatchUp(state.layers)) if fits else PLAIN
        emits = end == len(request.tokens)
        # Room for what the proposer may write: the token that the target adds, then its own nodes. A pair is written
        # to the slot of its token, which comes after the state.
        slots = len(draft) + 1 + budget if emits else int(self._pairs and follow)
        if not request.table.grow(min(end + slots, request.longest)):
            return PLAIN
        tokens, layers = request.tokens, self._layers(request)
        branches = emits and budget and self._next_width > 1
        width, nodes = (self._next_width, min(limit, self._nodes, next_rows)) if branches else (1, 0)
        if not follow:
            return StepPart(draft, CatchUp(layers, budget=budget, width=width, nodes=nodes))
        missing = max(self._lacking(request) - rows, 0) if emits else 0
        # Requests catch up one after another: with one row per step none would, as the target advances too.
        again = rows + (missing if missing <= left else left if left > 1 else 0)
        catch_up = CatchUp(
            layers,
            unseen=tuple(tokens[layers.computed : end + (self._pairs and not emits)]),
            rerun=tuple(tokens[layers.next_state : layers.next_state + again]),
            budget=budget,
            width=width,
            nodes=nodes,
            follow=True,
            states=request.table.begin_draft(
                end + (len(draft) + 1 if emits else 0), len(request.prompt_tokens), keep=self._share_prefixes
            ),
            tenant=request.tenant if self._share_own else None,
        )
        return StepPart(draft, catch_up)

    def advance(self, request: DraftedRequest, proposal: Proposal) -> None:
        """Take a proposer's result of a step."""
        state = request.drafting
        state.pending = NO_DRAFT
        if proposal is NO_PROPOSAL:
            return
        before, state.layers = state.layers.computed, proposal.state
        if self._recurrent and before != state.layers.computed:
            request.table.advance_draft(state.layers.computed, request.tokens)
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
        elif self._share_prefixes and before != state.layers.computed and not state.layers.since:
            request.table.mark_valid(_PROPOSER, before, state.layers.computed)

    # --------------------------------------------------------------------------------------------- one request

    def _layers(self, request: DraftedRequest) -> ProposerState:
        """Return how far its layers have come, or where they start over because they cannot catch up."""
        layers = request.drafting.layers
        if self._pairs and not self._reruns and layers.computed < request.computed:
            return ProposerState(request.computed, since=request.computed)
        return layers

    def _lacking(self, request: DraftedRequest) -> int:
        """How many computed tokens the target would run once more for states that a head of pairs has not seen."""
        return request.computed - request.drafting.layers.next_state if self._pairs and self._reruns else 0

    def _worth(self, request: DraftedRequest, saving: float) -> bool:
        """Whether a request has enough left for drafts that save this share to be worth catching up for."""
        policy = self._policy
        if policy is None or (self._lacking(request) <= 0 and self._behind(request) <= _NEAR):
            return True
        # All requests wait meanwhile: plain steps would emit so many tokens.
        return self._catching_up(request) * policy.requests <= saving * min(request.remaining, _FAR) * policy.plain

    def _catching_up(self, request: DraftedRequest) -> float:
        """Return the seconds that catching up takes before it can draft for a request."""
        policy = self._policy
        assert policy is not None
        assert policy.device_length is not None
        lacking = max(self._lacking(request), 0)
        return policy.extra(policy.rows, lacking) + policy.device_length.cost.following(self._behind(request))

    def _behind(self, request: DraftedRequest) -> int:
        """How many known tokens the proposer has not processed."""
        return len(request.tokens) - self._layers(request).computed if self._follows else 0

    def _lag(self, request: DraftedRequest) -> int:
        """How many tokens the proposer has to process before it can draft for a request."""
        layers = self._layers(request)
        return max(request.computed - layers.computed - self._pairs, 0) if self._follows else 0

    def _distance(self, request: DraftedRequest) -> int:
        """The cost of catching up before it can draft for a request, in tokens to process."""
        return self._lag(request) + _UNSEEN * self._lacking(request)

    def _drafts_for(self, request: DraftedRequest) -> bool:
        """Whether it is to draft for a request, possibly after catching up."""
        if not self._may_draft_for(request):
            return False
        if self._policy is None or request in (self._tried or ()):
            return True
        return self._lacking(request) <= 0 if self._saving is None else self._worth(request, self._saving)

    def _begins(self, request: DraftedRequest) -> bool:
        return self._length > 0 and not request.drafting.predicted and self._drafts_for(request)

    @property
    def _pauses(self) -> bool:
        return self._policy is not None and self._policy.pauses

    def _may_draft_for(self, request: DraftedRequest) -> bool:
        """Whether it is loaded for a request, and no other draft is better."""
        state = request.drafting
        if not state.device or state.predicted:
            return False
        if self._policy is None or self._policy.device_length is None:
            return True
        best = state.best
        if best is None or best.speculated > 0 or not state.chosen.tokens:
            return True
        return sum(best.chances) < self._policy.device_length.gain
