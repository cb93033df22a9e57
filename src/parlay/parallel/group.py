"""A group of ranks among which a model is split. Most engines have a group of one.

Every layer is split by its **outputs**: a rank computes its share of them over all inputs, and the shares are
gathered. So each number is summed as it is on one rank, for any shape, and has the same bits for any number of
ranks. That takes twice the exchanges of splitting by inputs and adding sums, each a plain copy.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from parlay.parallel.pipeline import WHOLE, Channel, Pipeline

_PANEL = 32  # outputs that kernels compute together


class Exchange(Protocol):
    """How ranks hand each other columns.

    Attributes:
        recordable: whether it is a kernel of the native module, so that recorded passes repeat it.
    """

    recordable: bool

    def gather(self, own: Tensor, out: Tensor, bounds: tuple[int, ...]) -> None:
        """Write every rank's columns to `out`.

        Args:
            own: this rank's columns, `[rows, bounds[rank + 1] - bounds[rank]]`.
            out: `[rows, bounds[-1]]`, of the same dtype; rank r has its columns from `bounds[r]` to `bounds[r + 1]`.
            bounds: first column of each rank, and the end.

        Raises:
            RankError: another rank has ended, or does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that share a model's layers.

    Attributes:
        rank: index of this process in the group.
        size: number of ranks in the group.
        exchange: how they hand each other columns; None when `size` is 1.
        fast: whether layers that need all inputs are split by them, and the ranks' sums are added: half the
            exchanges, other bits.
        pipeline: the stages of the model, of which these ranks are one.
    """

    rank: int = 0
    size: int = 1
    exchange: Exchange | None = None
    fast: bool = False
    pipeline: Pipeline = WHOLE

    @property
    def recordable(self) -> bool:
        """Whether passes that this group shares may be recorded and replayed: all that they compute is kernels'."""
        return self.exchange is None or (self.exchange.recordable and not self.fast)

    def bounds(self, size: int, unit: int = 1) -> tuple[int, ...]:
        """Return where each rank's share of a dimension begins, and the end.

        Args:
            size: size of the dimension.
            unit: what cannot be divided, such as a head; shares are as equal as whole units let them be, and empty
                where there are fewer units than ranks.

        Raises:
            ValueError: the dimension is not made of whole units.
        """
        if size % unit:
            raise ValueError(f"a dimension of {size} is not made of units of {unit}")
        units = size // unit
        return tuple(units * rank // self.size * unit for rank in range(self.size + 1))

    def output_bounds(self, outputs: int) -> tuple[int, ...]:
        """Return the bounds of a layer's outputs: in whole panels of the kernels where there are enough of them."""
        if outputs < _PANEL * self.size:
            return self.bounds(outputs)
        *begins, _ = self.bounds(outputs // _PANEL * _PANEL, _PANEL)
        return (*begins, outputs)

    def share(self, bounds: tuple[int, ...]) -> tuple[int, int]:
        """Return where this rank's share begins and ends."""
        return bounds[self.rank], bounds[self.rank + 1]

    def gather(self, own: Tensor, out: Tensor, bounds: tuple[int, ...]) -> None:
        """Write every rank's columns to `out`, see `Exchange.gather`; for a group of more than one."""
        assert self.exchange is not None
        self.exchange.gather(own, out, bounds)


ALONE = Group()


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where a rank is among all ranks of an engine.

    Ranks that share a stage's layers follow each other. The first ones of the first stage share a proposer's
    layers, if any do.

    Attributes:
        rank: index of the rank among all.
        size: number of all ranks.
        tp_size: number of ranks that share each layer.
        draft_tp_size: number of ranks that share the proposer's layers, if this one does; otherwise 0.
    """

    rank: int = 0
    size: int = 1
    tp_size: int = 1
    draft_tp_size: int = 0

    @property
    def stage(self) -> int:
        """Its stage of the model."""
        return self.rank // self.tp_size

    @property
    def tp_rank(self) -> int:
        """Its index among the ranks of its stage."""
        return self.rank % self.tp_size

    @property
    def stages(self) -> int:
        """How many stages the model has."""
        return self.size // self.tp_size

    def group(self, exchange: Exchange | None, channel: Channel | None, *, fast: bool = False) -> Group:
        """Return the group of its stage, reached through `exchange`; `channel` leads to other stages."""
        return Group(self.tp_rank, self.tp_size, exchange, fast, Pipeline(self.stage, self.stages, channel))

    def draft_group(self, exchange: Exchange | None) -> Group:
        """Return the group of those that share a proposer's layers."""
        return ALONE if exchange is None else Group(self.rank, self.draft_tp_size, exchange)
