"""How drafts are verified, and vLLM's words for it, older ones included."""

from collections.abc import Mapping
from typing import Any

from parlay.errors import ConfigError, shown

COUPLED, REJECTION, BLOCK, TYPICAL = VERIFICATIONS = ("coupled", "rejection", "block", "typical")
DRAWN = frozenset({REJECTION, BLOCK})  # which need the distributions that nodes were drawn from
LOSSY = frozenset({TYPICAL})

# What vLLM's words mean; "strict" accepts a node where the target draws the same token, as coupled verification does.
_WORDS: dict[str, dict[str, str]] = {
    "rejection_sample_method": {
        "strict": COUPLED,
        "standard": REJECTION,
        "probabilistic": REJECTION,
        "block": BLOCK,
    },
    "acceptance_method": {"rejection_sampler": REJECTION, "typical_acceptance_sampler": TYPICAL},
    "draft_sample_method": {"greedy": COUPLED, "probabilistic": REJECTION, "gumbel": REJECTION},
}


def verification_of(numerics_id: str) -> str:
    """Return how an engine with this numerics id verifies drafts."""
    kind = numerics_id.rsplit("/", 1)[-1].removesuffix("-lossy")
    return kind if kind in VERIFICATIONS else COUPLED


def in_own_words(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a speculative config with `verification` for vLLM's words.

    A node that is its proposer's likeliest token (`draft_sample_method="greedy"`) is verified by drawing the target's
    token, which is coupled verification; block verification implies drawn nodes.

    Raises:
        ConfigError: an unknown word, or words that contradict each other or `verification`.
    """
    left = {key: value for key, value in given.items() if key not in _WORDS}
    translated: dict[str, str] = {}
    for key, meanings in _WORDS.items():
        value = given.get(key)
        if value is None:
            continue
        if not isinstance(value, str) or value not in meanings:
            known = ", ".join(map(repr, meanings))
            raise ConfigError(f"{key}={shown(value)} is not supported; write one of {known}, or leave it out")
        translated[key] = meanings[value]
    if translated.get("draft_sample_method") == COUPLED and translated.get("rejection_sample_method") == REJECTION:
        translated["rejection_sample_method"] = COUPLED
    if translated.get("rejection_sample_method") == BLOCK and translated.get("draft_sample_method") == REJECTION:
        del translated["draft_sample_method"]
    own = given.get("verification")
    everything = ({"verification": own} if isinstance(own, str) else {}) | translated
    if len(set(everything.values())) > 1:
        (one, _), (other, _), *_ = everything.items()
        raise ConfigError(
            f"{one}={shown(given[one])} and {other}={shown(given[other])} contradict each other; "
            "write verification alone"
        )
    return left | ({"verification": next(iter(translated.values()))} if translated else {})
