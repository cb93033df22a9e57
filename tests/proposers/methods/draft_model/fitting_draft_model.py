"""What suits draft models."""

from typing import Any


def options(pair: Any) -> dict[str, Any]:
    """Return the draft model that comes with a pair of random models."""
    return {"model": str(pair.draft)}
