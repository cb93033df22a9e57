"""All drafts of a request: from its user's prediction, from host proposers, from a device proposer."""

from parlay.drafting.calibration import Calibration
from parlay.drafting.goodput import survivals
from parlay.drafting.hosts import Turn
from parlay.drafting.shape import shape
from parlay.drafting.state import Candidate, Drafted
from parlay.drafting.trust import Trust
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.plan import SpanError


class Candidates:
    """Finds them, applies the grammar, and adds calibrated probabilities and expected tokens."""

    def __init__(self, calibration: Calibration, trust: Trust) -> None:
        self._calibration, self._trust = calibration, trust

    def __call__(
        self, request: Drafted, limit: int, room: int, step: int, least: float, *, anew: bool, branch: bool
    ) -> list[Candidate]:
        """Return a request's drafts that have a node.

        Args:
            request: the one to draft for.
            limit: most nodes, one or more.
            room: most nodes together with those that a grammar forces.
            step: the step's number; a host proposer may pause in it.
            least: where the probability to be accepted falls below this, a host proposer's chain ends.
            anew: whether to make drafts, or only to take those that exist already.
            branch: whether host proposers' drafts may have branches.

        Raises:
            SpanError: its cause says what went wrong with the request.
        """
        state, tokens = request.drafting, request.tokens
        try:
            if anew and state.prediction is not None and (draft := state.prediction.propose(limit)):
                drafts: list[tuple[Draft, Turn | None, bool]] = [(draft, None, False)]
            else:
                own, turns = request.request_id, state.turns if anew else ()
                drafts = [(host.ask(own, turn, tokens, limit, step, branch), turn, False) for host, turn in turns]
                drafts.append((state.pending.cut(limit), None, True))
            found = [self._candidate(request, *one, room, least) for one in drafts if one[0].tokens]
            if not found and state.constraint is not None:  # which may force some
                found = [self._candidate(request, NO_DRAFT, None, False, room, least)]
            return [candidate for candidate in found if candidate.draft.tokens]
        except Exception as error:
            raise SpanError(request.request_id) from error

    def _candidate(
        self, request: Drafted, draft: Draft, turn: Turn | None, pending: bool, room: int, least: float
    ) -> Candidate:
        constraint, own = request.drafting.constraint, pending
        intact = len(draft)
        if constraint is not None:
            draft, intact = shape(draft, constraint, request.output_tokens, min(request.remaining - 1, room))
            own = own and intact == len(draft)
        draft = self._calibration.apply(draft, request.params, least if turn is not None else 0.0)
        chances = survivals(draft)
        factor = 1.0
        if turn is not None and draft.tokens:
            factor = self._trust.factor(draft.source[0], request.params.temperature > 0)
            chances = [factor * chance for chance in chances]
        return Candidate(draft, chances, turn, intact if pending else 0, own, factor)
