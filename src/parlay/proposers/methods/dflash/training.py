"""Training of a DFlash head: see the proposer of the same name.

Its authors let it learn the text's tokens; here it learns the target's distributions of them, as all heads do. What
stands for a mask is learnt too, beside the target's embedding, which the head shares.
"""

from typing import Any

from torch import Tensor

from parlay.proposers.methods.dflash.format import ARCHITECTURE
from parlay.train.blocks import BlockOptions as Options
from parlay.train.blocks import BlockTrainee

__all__ = ["Options", "Trainee"]


class Trainee(BlockTrainee):
    """Layers that draft every token of a block on its own."""

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the head in its authors' layout; the embedding is the target's."""
        config, tensors = super().export()
        return {"architectures": [ARCHITECTURE], **config}, tensors
