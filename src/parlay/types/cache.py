"""What a group of layers keeps of the tokens that it has processed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The keys and values of one layer group (a target, or a proposer with cache layers).

    Attributes:
        layers: attention layers in the group.
        kv_heads: key and value heads a layer.
        head_dim: elements a head.
        itemsize: bytes an element.
        values: whether there are values; otherwise they are the keys, as in latent attention.
    """

    layers: int
    kv_heads: int
    head_dim: int
    itemsize: int
    values: bool = True

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in the group."""
        return (1 + self.values) * self.layers * self.kv_heads * self.head_dim * self.itemsize
