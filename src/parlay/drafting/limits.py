"""Which methods may draft for a request, and how much."""

from collections.abc import Sequence

from parlay.config.speculative import PLAIN
from parlay.drafting.state import DraftedRequest
from parlay.types.params import SpeculationOverride


def permitted(request: DraftedRequest, loaded: Sequence[str]) -> Sequence[str] | None:
    """Return which of the loaded methods may draft for a request; None if nothing may, not even its prediction."""
    params, own = request.params, request.params.speculative
    if params.logits_processors and params.stop:
        return None  # a step does not know stop strings, and must not call processors for tokens beyond one
    if own is None:
        return loaded
    assert isinstance(own, SpeculationOverride)
    if not own.enabled or own.method == PLAIN:
        return None
    return loaded if own.method is None else [name for name in loaded if name == own.method]


def within(request: DraftedRequest, longest: int) -> int:
    """Return how many nodes, at most `longest`, a request's parameters permit in a draft."""
    return min(longest, own_bound(request) or longest)


def own_bound(request: DraftedRequest) -> int | None:
    """Return the limit on a draft's nodes that the request itself asks for."""
    own = request.params.speculative
    return own.num_speculative_tokens if isinstance(own, SpeculationOverride) else None
