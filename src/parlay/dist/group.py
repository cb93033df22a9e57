"""A group of ranks among which layers are split. Most engines have a group of one."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that share a layer.

    Attributes:
        rank: this process's place in the group.
        size: ranks in the group.
        handle: a `torch.distributed` process group; None when `size` is 1.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks, in rank order: gather, then add.

        A library's all-reduce may pick another order by message size; this one gives every row the same
        bits whatever the batch. `x` has any shape, the same on all ranks.
        """
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        torch.distributed.all_gather(parts, x, group=self.handle)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def shard(self, weight: Tensor, dim: int) -> Tensor:
        """Return this rank's equal share of `weight` along `dim`.

        Raises:
            ValueError: the dimension cannot be divided among the ranks.
        """
        if self.size == 1:
            return weight
        begin, end = self.share(weight.shape[dim])
        return weight.narrow(dim, begin, end - begin).contiguous()

    def share(self, size: int) -> tuple[int, int]:
        """Return where this rank's equal share of a dimension begins and ends.

        Raises:
            ValueError: it cannot be divided among the ranks.
        """
        if size % self.size:
            raise ValueError(f"a dimension of {size} does not divide among {self.size} ranks")
        each = size // self.size
        return self.rank * each, (self.rank + 1) * each


ALONE = Group()
