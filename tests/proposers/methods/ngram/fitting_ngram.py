"""What suits n-grams."""

from typing import Any

TEXT = "a, b, c, d, a, b, c, d, a, b, c, d, a, b,"
GUESSES_ON_RANDOM_TEXTS = True  # random models repeat themselves a little


def options(pair: Any) -> dict[str, Any]:
    """Return what finds something in such texts too."""
    return {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
