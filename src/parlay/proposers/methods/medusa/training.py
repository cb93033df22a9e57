"""Training of Medusa heads: see the proposer of the same name.

As in the authors' code, all heads start as a copy of the target's next-token prediction (blocks of zeros, and the
target's output layer), and each learns the distribution of a token further ahead from the same hidden state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from parlay.errors import ConfigError
from parlay.proposers.methods.medusa.format import ARCHITECTURE, BIASED, FILE, HEADS, LAYERS, MODEL_TYPE
from parlay.proposers.methods.medusa.format import block as block_name
from parlay.proposers.methods.medusa.format import output as output_name
from parlay.train.data import Text
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch
from parlay.train.trainee import DraftStep
from parlay.train.trainee import Trainee as Base


@dataclass(frozen=True, slots=True)
class Options:
    """Training options of Medusa heads.

    Attributes:
        num_heads: tokens drafted in a row.
        num_layers: residual blocks of a head.
        own_outputs: give every head its own output layer, as in the first generation; without, as in the second,
            heads are far smaller and use the target's.
    """

    num_heads: int = 4
    num_layers: int = 1
    own_outputs: bool = False

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_layers"):
            if not 1 <= getattr(self, name) <= 64:
                raise ConfigError(f"{name} must be between 1 and 64, not {getattr(self, name)}")


class Trainee(Base):
    """Heads of residual blocks on the last hidden state."""

    file = FILE

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        config = teacher.config
        self.depth = options.num_heads
        self._vocab = config.vocab_size
        self._own = options.own_outputs
        self._target = teacher.output()
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size) for _ in range(options.num_layers))
            for _ in range(options.num_heads)
        )
        for parameter in self.blocks.parameters():
            nn.init.zeros_(parameter)
        first = self._target.weight.float().cpu()
        copies = options.num_heads if options.own_outputs else 0
        self.outputs = nn.ParameterList(nn.Parameter(first.clone()) for _ in range(copies))

    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:  # noqa: D102
        for i, blocks in enumerate(self.blocks):
            assert isinstance(blocks, nn.ModuleList)
            starts = batch.starts(2 + i)
            state = batch.hidden[starts]
            for block in blocks:
                state = state + silu(block(state))
            output = TargetOutput(self.outputs[i]) if self._own else self._target
            yield DraftStep(state, output, starts + 1 + i)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return heads in their authors' layout."""
        tensors: dict[str, Tensor] = {}
        layers = 0
        for i, blocks in enumerate(self.blocks):
            assert isinstance(blocks, nn.ModuleList)
            layers = len(blocks)
            for j, block in enumerate(blocks):
                assert isinstance(block, nn.Linear)
                tensors[f"{block_name(i, j)}.weight"] = block.weight
                tensors[f"{block_name(i, j)}.bias"] = block.bias
            if self._own:
                tensors[output_name(i, layers)] = self.outputs[i]
        config = {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            HEADS: self.depth,
            LAYERS: layers,
            "hidden_size": self._target.weight.shape[1],
            "vocab_size": self._vocab,
            BIASED: True,
        }
        return config, {name: torch.as_tensor(tensor) for name, tensor in tensors.items()}
