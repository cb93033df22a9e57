"""Distributions that nodes are drawn from, and private noise for each decision: for classical verification.

Coupled verification has one stream of noise, with which proposer and target draw the same token. The classical
samplers are exact only if no two decisions share noise. So a word of noise is keyed by the seed, the position, the
purpose and, for nodes, their index in the draft: a node that a step dropped is drawn anew when its place comes again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import exp
from types import MappingProxyType

import torch
from msgspec.structs import replace
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.types.draft import Draft


class Purpose(IntEnum):
    """What a draw decides. Streams of different purposes have no word in common."""

    TARGET = 0  # a token, from the target's own distribution; what coupled drafting shares
    DRAFT = 1  # a node
    ACCEPT = 2  # whether nodes are accepted
    RESIDUAL = 3  # a token, from what is left of the target's distribution


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a node was drawn from.

    Attributes:
        logs: float32 `[D]`, log-probabilities.
        ids: int64 `[D]`, the target's ids of these tokens; None where they are the same.
    """

    logs: Tensor
    ids: Tensor | None = None

    def on_host(self) -> "Distribution":
        """Return the same in the machine's memory."""
        return Distribution(self.logs.cpu(), None if self.ids is None else self.ids.cpu())

    def index_of(self, token: int) -> int | None:
        """Return the index of a token of the target's; None if it has none."""
        if self.ids is None:
            return token
        found = (self.ids == token).nonzero()
        return int(found[0]) if len(found) else None


Distributions = Mapping[int, Sequence[Distribution]]  # by request: what its draft's nodes were drawn from
NO_DISTRIBUTIONS: Distributions = MappingProxyType({})


def separate(draft: Draft) -> tuple[Draft, tuple[Distribution, ...]]:
    """Return a draft with numbers in place of its nodes' distributions, and these distributions."""
    if draft.q is None:
        return draft, ()
    drawn = [distribution.on_host() for distribution in draft.q if distribution is not None]
    numbers = iter(range(len(drawn)))
    return replace(
        draft, q=tuple(None if distribution is None else next(numbers) for distribution in draft.q)
    ), tuple(drawn)


def noise_key(position: int, purpose: Purpose, index: int = 0) -> int:
    """Return the kernels' position for a draw of some purpose.

    Args:
        position: position of the token in question, below 2^32.
        purpose: purpose of the draw; the target's own draws have index 0 and keys that are their positions.
        index: number of the token in the step's draft, from 1.
    """
    return position | (purpose + len(Purpose) * index) << 32


def uniforms(kernels: Kernels, seed: int, key: int, count: int) -> list[float]:
    """Return independent uniforms between 0 and 1.

    Args:
        kernels: the operations to run with.
        seed: seed of the request, unsigned.
        key: key that `noise_key` has returned.
        count: number of uniforms.
    """
    noise = torch.empty(count, dtype=torch.float64)
    kernels.gumbel(seed, key, noise)
    return [exp(-exp(-value)) for value in noise.tolist()]
