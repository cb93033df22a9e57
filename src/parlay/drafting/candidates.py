"""The drafts that a request's proposers have for it, as the grammar permits them, and the one made of them."""

from collections.abc import Iterable, Sequence

from parlay.drafting.belief import Belief, survivals
from parlay.drafting.grammar_drafts import constrain_draft
from parlay.drafting.host_drafts import Faults, Predictions
from parlay.drafting.state import Candidate, DraftedRequest, HostSource
from parlay.drafting.union import best_of, union
from parlay.types.draft import NO_DRAFT, Draft

_LEAST = 0.25  # of the price of a row: a host proposer's chain is cut where its chance is below this


class Candidates:
    """Collects proposers' drafts, and estimates what they are worth.

    Attributes:
        predictions: the proposer of requests' own predictions.
        belief: estimates of acceptance rates.
    """

    def __init__(self, belief: Belief, faults: Faults) -> None:
        """Create without drafts; errors of a request's proposers are added to `faults`, and end its drafts."""
        self.predictions, self.belief = Predictions(), belief
        self._faults = faults

    def gather(
        self,
        request: DraftedRequest,
        limit: int,
        room: int,
        hosts: Iterable[HostSource],
        price: float,
        *,
        branch: bool,
    ) -> list[Candidate]:
        """Return all drafts of a request that have a node: a device proposer's, and those of some on the host.

        Args:
            request: the request to draft for.
            limit: most nodes.
            room: most nodes, with those that a grammar forces.
            hosts: host proposers to ask; those after a prediction that has a draft are skipped.
            price: cost of a row, in tokens.
            branch: whether host proposers' drafts may have branches.
        """
        state = request.drafting
        if limit < 1:
            return []
        try:
            found: list[Candidate] = []
            for host in hosts:
                if draft := host.ask(request, limit, branch=branch):
                    found.append(self._candidate(request, draft, room, _LEAST * price, hosted=True))
                    if host is self.predictions:
                        break
            else:
                if state.pending.tokens:
                    found.append(self._candidate(request, state.pending.cut(limit), room))
            if not found and state.constraint is not None:  # a grammar may force tokens
                found.append(self._candidate(request, NO_DRAFT, room))
            return [candidate for candidate in found if candidate.draft.tokens]
        except Exception as error:
            self._faults.add("drafting", request.request_id, error)
            state.longest, state.prediction, state.device = 0, None, False
            return []

    def _candidate(
        self, request: DraftedRequest, draft: Draft, room: int, least: float = 0.0, *, hosted: bool = False
    ) -> Candidate:
        constraint, intact, own = request.drafting.constraint, len(draft), True
        if constraint is not None:
            draft, intact = constrain_draft(
                draft, constraint, request.output_tokens, min(request.remaining - 1, room)
            )
            own = intact == len(draft)
        draft = self.belief.apply(draft, request.params, least)
        if hosted:
            return Candidate(draft, survivals(draft), frozenset(range(len(draft))))
        return Candidate(draft, survivals(draft), speculated=intact, pending=own)

    def best(self, request: DraftedRequest, limit: int, price: float, *, branches: bool) -> Candidate:
        """Return one draft: the candidate that promises most, or with `branches` a tree of all of them.

        Args:
            request: request that has candidates.
            limit: most nodes, beyond those that a grammar added, which cost nothing to draft.
            price: cost of a row, in tokens.
            branches: whether a draft may have branches.
        """
        candidates, params = request.drafting.candidates, request.params
        if not branches:
            return best_of(candidates, price)
        most = max(limit, *(len(one.draft) for one in candidates), 0)
        return union(candidates, most, lambda draft: self.belief.estimate(draft, params))


def hosted(requests: Iterable[DraftedRequest]) -> list[Sequence[float]]:
    """Return the chances of the likeliest draft of each request that proposers on the host have one for."""
    own = ([one.chances for one in request.drafting.candidates if not one.speculated] for request in requests)
    return [max(drafts, key=sum) for drafts in own if drafts]
