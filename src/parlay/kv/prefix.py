"""Names for block contents: a block's hash covers its tokens and, through its parent's, all before them."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_DIGEST = 16


def root_hash(salt: str) -> bytes:
    """Return the parent hash of first blocks. Requests with different salts (tenants) never share blocks."""
    return blake2b(salt.encode(), digest_size=_DIGEST).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of a full block whose predecessor hashes to `parent`.

    A cryptographic hash: a collision would silently serve another prompt's keys.
    """
    return blake2b(array("q", tokens).tobytes(), key=parent, digest_size=_DIGEST).digest()
