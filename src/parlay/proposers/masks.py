"""The token that stands for those not known yet, for heads and draft models that draft all tokens in one pass."""

from parlay.errors import ModelError
from parlay.models.heads import HeadConfig


def mask_of(head: HeadConfig, keys: tuple[str, ...], tokens: int) -> int:
    """Return the id of the mask token.

    Args:
        head: the head whose config names it.
        keys: config keys that may name it; an error message asks for the last one.
        tokens: number of tokens that can be embedded.

    Raises:
        ModelError: there is none, or it cannot be embedded.
    """
    key = next((key for key in keys if head.raw.get(key) is not None), keys[-1])
    mask = head.count(key, least=0)
    if mask >= tokens:
        raise ModelError(
            f"{head.path}: the mask token {mask} is beyond the target's {tokens} tokens; the head was made for "
            "another target"
        )
    return mask
