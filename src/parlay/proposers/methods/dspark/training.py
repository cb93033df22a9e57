"""Training of a DSpark head: see the proposer of the same name.

It is a DFlash head with what a token says about the next one, of the simplest kind: a bias that depends on the token
alone. It learns behind the text's tokens, which are those drafted as long as the draft is still accepted. It has no
head that estimates acceptance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from parlay.errors import ConfigError
from parlay.models.config import ModelConfig
from parlay.proposers.methods.dspark import format as form
from parlay.train.blocks import BlockOptions, BlockTrainee
from parlay.train.data import Text
from parlay.train.layers import random
from parlay.train.teacher import Teacher
from parlay.train.trainee import DraftStep


@dataclass(frozen=True, slots=True)
class Options(BlockOptions):
    """Training options of a DSpark head.

    Attributes:
        markov_rank: numbers by which a token is known to what it says about the next one.
    """

    markov_rank: int = 64

    def __post_init__(self) -> None:
        BlockOptions.__post_init__(self)
        if not 1 <= self.markov_rank <= 4096:
            raise ConfigError(f"markov_rank must be between 1 and 4096, not {self.markov_rank}")


class Trainee(BlockTrainee):
    """Layers that draft a block whose tokens are chosen one after another."""

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self.before = random(self.config.vocab_size, options.markov_rank)
        self.bias = nn.Parameter(torch.zeros(len(self.output.weight), options.markov_rank))

    @classmethod
    def check(cls, options: Any, target: ModelConfig) -> None:  # noqa: D102
        super().check(options, target)
        if target.style.logit_cap and not options.draft_vocab_size:
            raise ConfigError(
                f"the output layer of {target.path} caps its logits, which a bias cannot follow; give a "
                "draft_vocab_size, with which the head has one of its own"
            )

    def score(self, states: Tensor, before: Tensor, labels: Tensor) -> DraftStep:  # noqa: D102
        return DraftStep(
            torch.cat([states, self.before[before]], -1), replace(self.output, further=self.bias), labels
        )

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the head in its authors' layout; the embedding is the target's."""
        config, tensors = super().export()
        config["dflash_config"]["sample_from_anchor"] = False
        scale = config["dflash_config"].get("output_multiplier", 1.0)  # which is applied to the bias too
        tensors |= {form.BEFORE: self.before, form.BIAS: self.bias / scale}
        rank = self.before.shape[1]
        return {"architectures": [form.ARCHITECTURE], **config, form.RANK: rank, form.KIND: "vanilla"}, tensors
