"""MLP speculator: from the last hidden state and the newest token, one small layer per node.

Idea: Wertheimer et al. 2024 (arXiv 2404.19124), IBM's accelerators for public models. A state, at first the target's,
is projected, joined by the embedding of the newest token, normed and activated; a head on it predicts the next token,
which joins the state in turn. So a node depends on those before it, unlike Medusa's, and costs no attention.

Loses where the text depends on more than the last state holds: acceptance falls quickly from node to node.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ModelError
from parlay.models.layers import Embedding, OutputLayer, SplitLinear
from parlay.proposers.base import Runtime
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.proposers.heads import HeadProposer
from parlay.proposers.methods.mlp_speculator.format import PREFIX, tensor
from parlay.proposers.shared_passes import shared
from parlay.proposers.vocabulary import fitted, ids_of
from parlay.runner.graphs import MOST_ROWS
from parlay.weights.weight import Weight

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {"model": "tiny-code-mlp-speculator"}
_EPS = 1e-6
_MOST_DRAFTED = 64


@dataclass(frozen=True, slots=True)
class _Stage:
    """The weights of one node. Stages may share tensors."""

    project: SplitLinear
    embedding: Embedding
    norm: Tensor
    bias: Tensor
    head: OutputLayer


class Proposer(HeadProposer):
    """Drafts, each node from the state and the node before it."""

    default_length = 3
    source = "mlp_speculator"

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        head, target = self.head, self._target
        vocab, width, count = head.count("vocab_size"), head.count("emb_dim"), head.count("n_predict")
        head.check_target(target.config, hidden=width, vocab=vocab)
        if count > _MOST_DRAFTED:
            raise ModelError(f"{head.path / 'config.json'}: n_predict must be at most {_MOST_DRAFTED}, not {count}")
        inner = head.count("inner_dim", 0, least=0) or width
        self._vocab, self._inner = min(vocab, target.config.vocab_size), inner
        self._scaled = head.flag("scale_input", False)
        self._tied = head.flag("tie_weights", False)
        self._prefix = PREFIX if any(name.startswith(PREFIX) for name in weights.names) else ""
        own: dict[str, tuple[int, ...]] = {}
        copies: dict[str, tuple[int, ...]] = {}  # of tied tensors, which some exporters write out
        for i in range(count):
            shapes: dict[str, dict[str, tuple[int, ...]]] = {
                "emb": {"weight": (vocab, inner)},
                "proj": {"weight": (inner, width if i == 0 else inner)},
                "ln": {"weight": (inner,), "bias": (inner,)},
                "head": {"weight": (vocab, inner)},
            }
            for part, kinds in shapes.items():
                for kind, shape in kinds.items():
                    to = own if self._source(part, i) == i else copies
                    to[self._prefix + tensor(part, i, kind)] = shape
        present = set(weights.names)
        self._copies = tuple(name for name in copies if name in present)
        weights.expect(own | {name: copies[name] for name in self._copies})
        embeddings = [name for name in own if name.startswith(f"{self._prefix}emb.")]
        self.weight_bytes = weights.size(own, target.dtype, embeddings) + MOST_ROWS * vocab * 4
        self.default_length = self.max_depth = count

    def _source(self, part: str, index: int) -> int:
        """Return whose tensors node `index` uses, its own or another's; the first projection is always its own."""
        if not self._tied:
            return index
        return min(index, 1) if part == "proj" else 0

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        dtype, kernels, group, inner = self._target.dtype, runtime.kernels, runtime.group, self._inner
        vocab = self._target.config.vocab_size
        self.ids = ids_of(self._vocab, vocab)
        for name in self._copies:
            self._check_copy(weights, name)
        # The embedding's share of a state of unit variance; the older half fades over n_predict nodes.
        fade = 0.5 ** (0.5 / self.default_length)
        share = math.sqrt((1 - fade * fade) * inner / 2) / fade

        def part(name: str, index: int, kind: str = "weight") -> Tensor:
            return weights.read(self._prefix + tensor(name, index, kind), dtype)

        def matrix(name: str, index: int) -> Weight:
            return weights.read_weight(self._prefix + tensor(name, index), dtype)

        stages: list[_Stage] = []
        for i in range(self.default_length):
            if i and self._source("emb", i) < i:
                shared = stages[0]
                project = stages[1].project if i > 1 else SplitLinear(kernels, matrix("proj", i), group)
                stages.append(_Stage(project, shared.embedding, shared.norm, shared.bias, shared.head))
                continue
            stages.append(
                _Stage(
                    SplitLinear(kernels, matrix("proj", i), group),
                    Embedding(kernels, fitted(Weight.of(part("emb", i) * share), vocab), group),
                    part("ln", i),
                    part("ln", i, "bias"),
                    OutputLayer(kernels, fitted(matrix("head", i), self._vocab), group=group),
                )
            )
        self._stages = stages
        # A state is read while the next one is written.
        self._states = torch.zeros((2, MOST_ROWS, inner), dtype=dtype)
        self._newest = torch.zeros((MOST_ROWS, inner), dtype=dtype)
        self._each = torch.arange(MOST_ROWS, dtype=torch.int32)
        self._every = torch.arange(MOST_ROWS)
        self._logits = torch.zeros((MOST_ROWS, self._vocab))
        self._halved = torch.full((self._hidden.shape[1],), 0.5**0.5, dtype=dtype)

    def _check_copy(self, weights: Checkpoint, name: str) -> None:
        part, index, kind = name.removeprefix(self._prefix).split(".")
        original = self._prefix + tensor(part, self._source(part, int(index)), kind)
        dtype = self._target.dtype
        if not torch.equal(weights.read(name, dtype), weights.read(original, dtype)):
            raise ModelError(
                f"{self.head.path}: {name} differs from {original}, although the config says tie_weights"
            )

    def begin(self, states: Tensor, rows: Tensor) -> None:  # noqa: D102
        super().begin(states, rows)
        if self._scaled:
            hidden = self._hidden[: len(rows)]
            self._kernels.rms_norm(hidden, self._halved, _EPS, hidden)

    def gather(self, level: int, origin: Tensor) -> None:  # noqa: D102
        state, rows = self._states[1 - level % 2], len(origin)
        self._kernels.embed(state, origin, self._newest[:rows])
        self._kernels.embed(self._newest, self._every[:rows], state[:rows])

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        before = self._states[1 - level % 2, :rows] if level else self._hidden[:rows]
        self._continue(level, before, self._expander.tokens[level, :rows])

    @shared
    def _continue(self, level: int, before: Tensor, tokens: Tensor) -> None:
        """Compute a level's states from those `[rows, D]` of the one before, and its nodes `[rows]`."""
        kernels, stage, rows = self._kernels, self._stages[level], len(tokens)
        state = self._states[level % 2, :rows]
        stage.project(before, state)
        stage.embedding(tokens, self._newest[:rows])
        kernels.add_embedding(state, self._newest, self._each[:rows])  # the sum of both, row by row
        kernels.rms_norm(state, stage.norm, _EPS, state)
        kernels.add_bias(state, stage.bias)
        kernels.activate(state, "gelu")

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self._own_logits(level, self._states[level % 2, :rows])

    @shared
    def _own_logits(self, level: int, state: Tensor) -> Tensor:
        return self._stages[level].head(state, self._logits[: len(state)])
