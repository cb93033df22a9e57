"""Stages of a model, each on other ranks: every stage has some of the layers, and hands the rows' states on.

The stages are a ring: the last one hands its states to the first, which begins and ends every pass. So several passes
can be under way at once, each in another stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from torch import Tensor


class Channel(Protocol):
    """How a stage hands states to the next one, and gets them from the one before, in order."""

    def send(self, states: Tensor) -> None:
        """Hand states to the next stage; the tensor may be changed afterwards.

        Raises:
            RankError: another rank has ended, or does not answer.
        """
        ...

    def receive(self, states: Tensor) -> None:
        """Write to `states` what the stage before has sent, which has the same shape and dtype.

        Raises:
            RankError: another rank has ended, or does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of a model, as a rank of one of them sees them.

    Attributes:
        stage: index of this rank's stage.
        stages: number of stages.
        channel: channel to the stages before and after; None where there is one stage.
    """

    stage: int = 0
    stages: int = 1
    channel: Channel | None = None

    @property
    def first(self) -> bool:
        """Whether this stage begins a pass."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this stage has the last layers."""
        return self.stage == self.stages - 1

    def share(self, sizes: Sequence[int], ends: int = 0) -> tuple[int, int]:
        """Return the first layer of this stage and the first of the next.

        Args:
            sizes: bytes of each layer.
            ends: bytes that the first stage reads besides its layers.
        """
        bounds = split_evenly(sizes, self.stages, ends)
        return bounds[self.stage], bounds[self.stage + 1]


WHOLE = Pipeline()


def split_evenly(sizes: Sequence[int], parts: int, ends: int = 0) -> list[int]:
    """Return where each part of a sequence begins, and the end; parts are as equal as whole elements let them be.

    Args:
        sizes: sizes of the elements, of which each part has at least one.
        parts: number of parts, at most as many as elements.
        ends: size that the first part has besides.
    """
    totals = [ends + total for total in accumulate(sizes, initial=0)]
    bounds = [0]
    for part in range(1, parts):
        aim = part * totals[-1] / parts
        cuts = range(bounds[-1] + 1, len(sizes) - parts + part + 1)
        bounds.append(min(cuts, key=lambda cut: abs(totals[cut] - aim)))
    return [*bounds, len(sizes)]
