"""Medusa: a head for each of the next tokens, all on the last hidden state.

Idea: Cai et al. 2024 (arXiv 2401.10774). Head i predicts the token i + 1 places after the newest, independently: it
knows neither the newest token nor the other heads' nodes. A head is residual blocks of the target's width and then
either its own output layer (the first generation) or the target's (the second), which makes the head far smaller. The
heads' likeliest tokens make a chain, or a tree in which any token of a head may follow any of the one before: the
likeliest paths, or those of `medusa_choices`.

Costs one pass over the heads per step at any draft length. Loses where a node depends on those before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.config.speculative import MOST_WIDTH
from parlay.errors import ConfigError, ModelError, shown
from parlay.models.layers import OutputLayer, SplitLinear
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.heads import CheckpointOptions, HeadProposer
from parlay.proposers.methods.medusa.format import BIASED, MAP, read_layout
from parlay.proposers.shared_passes import shared
from parlay.proposers.vocabulary import checked_ids, fitted, ids_of
from parlay.runner.graphs import MOST_ROWS

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {"model": "tiny-code-medusa"}


@dataclass(frozen=True, slots=True)
class Options(CheckpointOptions):
    """Options of Medusa's heads.

    Attributes:
        medusa_choices: the tree's nodes as paths of ranks, in the authors' form: `[[0], [0, 0], [1]]` has the two
            likeliest tokens of the first head, and after the likeliest of them that of the second. None for the
            likeliest paths, as many as pay.
    """

    medusa_choices: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        CheckpointOptions.__post_init__(self)
        known = set(self.medusa_choices or ())
        if self.medusa_choices is not None and not known:
            raise ConfigError("medusa_choices is empty; leave it out, or set tree to 'off' for chains")
        for path in self.medusa_choices or ():
            if not path or not all(0 <= rank < MOST_WIDTH for rank in path):
                raise ConfigError(f"medusa_choices holds {shown(path)}; a path has ranks from 0 to {MOST_WIDTH - 1}")
            if len(path) > 1 and path[:-1] not in known:
                raise ConfigError(f"medusa_choices holds {list(path)} without its parent {list(path[:-1])}; add that")
        if len(known) < len(self.medusa_choices or ()):
            raise ConfigError("medusa_choices holds a path twice; leave one of them out")


class Proposer(HeadProposer):
    """Drafts from every head's likeliest tokens."""

    source = "medusa"
    choices_option = "medusa_choices"
    uses_embed_or_lm_head = True
    path_free = True

    def __init__(self, options: Options, target: TargetInfo) -> None:
        super().__init__(options, target)
        if options.medusa_choices is None:
            return
        deepest = max(map(len, options.medusa_choices))
        if deepest > self.default_length:
            raise ConfigError(
                f"medusa_choices has paths of {deepest} tokens, but {self.head.path} has {self.default_length} "
                "heads; leave the longer paths out"
            )
        self.choices = tuple(sorted(options.medusa_choices, key=lambda path: (len(path), path)))

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        head, target = self.head, self._target
        layout = read_layout(weights.names, head.flag("original_lm_head", False))
        if layout is None:
            raise ModelError(f"{head.path} holds no Medusa heads: no tensor of theirs is in its weights")
        self._layout = layout
        width, vocab = target.config.hidden_size, target.config.vocab_size
        head.check_target(
            target.config,
            hidden=head.count("hidden_size", width),
            vocab=head.count("vocab_size", vocab),
        )
        first = f"{layout.blocks[0][0]}.weight"
        if first in weights.names:
            head.check_target(target.config, hidden=sum(weights.shape(first)[-1:]))
        self._vocab = vocab
        shapes: dict[str, tuple[int, ...]] = {}
        for block in (block for own in layout.blocks for block in own):
            shapes[f"{block}.weight"] = (width, width)
            if layout.biased or head.flag(BIASED, False):
                shapes[f"{block}.bias"] = (width,)
        choice: dict[str, tuple[int, ...]] = {}
        if layout.outputs:
            self._vocab = head.count("truncated_vocab_size", sum(weights.shape(MAP)) if layout.mapped else vocab)
            # Whole output layers may come with a reduced vocabulary too; they are cut when they are read.
            stored = next((sum(weights.shape(name)[:1]) for name in layout.outputs if name in weights.names), vocab)
            if stored not in (vocab, self._vocab):
                head.check_target(target.config, vocab=stored)
            if layout.mapped or self._vocab != vocab:
                choice[MAP] = (self._vocab,)
            else:
                self._vocab = min(stored, vocab)
            shapes |= dict.fromkeys(layout.outputs, (stored, width))
        weights.expect(shapes | choice)
        own = {name: (self._vocab, width) if name in layout.outputs else shape for name, shape in shapes.items()}
        self.weight_bytes = weights.size(own, target.dtype) + MOST_ROWS * self._vocab * 4
        self.default_length = self.max_depth = len(layout.blocks)

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        dtype, kernels, group, layout = self._target.dtype, runtime.kernels, runtime.group, self._layout
        self.at_once = not layout.outputs
        if layout.outputs:
            self.ids = (
                self._read_map(weights) if layout.mapped else ids_of(self._vocab, self._target.config.vocab_size)
            )
        self._blocks = [
            [
                SplitLinear(
                    kernels,
                    weights.read_weight(f"{block}.weight", dtype),
                    group,
                    weights.read(f"{block}.bias", dtype) if layout.biased else None,
                )
                for block in own
            ]
            for own in layout.blocks
        ]
        packed: dict[str, OutputLayer] = {}
        for name in dict.fromkeys(layout.outputs):
            weight = weights.read_weight(name, dtype)
            if weight.shape[0] != self._vocab:
                weight = fitted(weight, self._vocab) if self.ids is None else weight.chosen(self.ids)
            packed[name] = OutputLayer(kernels, weight, group=group)
        self._outputs = [packed[name] for name in layout.outputs]
        self._logits_of_target = runtime.target.logits
        width = self._hidden.shape[1]
        self._states = torch.zeros((self.default_length, MOST_ROWS, width), dtype=dtype)
        self._spare = torch.zeros((MOST_ROWS, width), dtype=dtype)
        self._each = torch.arange(MOST_ROWS, dtype=torch.int32)
        self._logits = torch.zeros((MOST_ROWS if layout.outputs else 0, self._vocab))

    def _read_map(self, weights: Checkpoint) -> Tensor:
        chosen = weights.read(MAP, torch.int64)
        return checked_ids(chosen, self._target.config.vocab_size, f"{self.head.path}: {MAP}")

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        self._run_blocks(level, self._hidden[:rows])

    @shared
    def _run_blocks(self, level: int, before: Tensor) -> None:
        """Run a head's blocks on the target's states `[rows, H]`."""
        kernels, rows, layers = self._kernels, len(before), self._blocks[level]
        state = self._states[level, :rows]
        for j, linear in enumerate(layers):
            # Two buffers in turn, so that no kernel writes what it reads; the last result ends in its place.
            after = state if (len(layers) - j) % 2 else self._spare[:rows]
            linear(before, after)
            kernels.activate(after, "silu")
            kernels.add_embedding(after, before, self._each[:rows])  # the sum of both, row by row
            before = after

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        state = self._states[level, :rows]
        return self._logits_of_target(state) if self.at_once else self._own_logits(level, state)

    @shared
    def _own_logits(self, level: int, state: Tensor) -> Tensor:
        return self._outputs[level](state, self._logits[: len(state)])

    def score_at(self, places: Tensor) -> Tensor:
        """Apply the target's output layer to states of several heads, if they have none of their own."""
        return self._logits_of_target(self._states.view(-1, self._states.shape[2]).index_select(0, places))
