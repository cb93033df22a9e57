"""What a request's parameters say of who may guess for it, and how far."""

from collections.abc import Sequence

from parlay.config.speculative import PLAIN
from parlay.drafting.state import Drafted
from parlay.types.params import SpeculationOverride


def permitted(request: Drafted, loaded: Sequence[str]) -> Sequence[str] | None:
    """Return who of those loaded may guess for a request; None if nothing may, not even its user's prediction."""
    params, wish = request.params, request.params.speculative
    if params.logits_processors and params.stop:
        return None  # a step knows nothing of stop strings, and must not call processors for tokens beyond one
    if wish is None:
        return loaded
    assert isinstance(wish, SpeculationOverride)
    if not wish.enabled or wish.method == PLAIN:
        return None
    return loaded if wish.method is None else [name for name in loaded if name == wish.method]


def within(request: Drafted, longest: int) -> int:
    """Return how many nodes, at most `longest`, a draft may have as far as a request's parameters go."""
    return min(longest, own_bound(request) or longest)


def own_bound(request: Drafted) -> int | None:
    """Return how many nodes a draft may have at most as the request itself asks."""
    wish = request.params.speculative
    return wish.num_speculative_tokens if isinstance(wish, SpeculationOverride) else None
