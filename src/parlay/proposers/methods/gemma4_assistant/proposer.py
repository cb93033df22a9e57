"""Gemma 4's assistant: a few small layers that read the target's keys and values instead of having their own.

Each node is made of the embedding of the token before it and a state, at first the target's last one, joined by a
projection. The layers have queries alone: from the place of the newest token, whatever the node's depth, they attend
to the keys and values of the target's last layer of their kind, with a window or without. A second projection gives
the state for the next node. So nothing has to be kept, caught up with or taken back, and it may pause at no cost.

Its output layer is narrow, but of a large vocabulary; where the checkpoint has centroids, few rows of it are read.
Loses further along a draft, since every node sees the same keys, and where the target is small itself.

Source: Gemma team 2026; transformers' `Gemma4AssistantForCausalLM` and `SinglePositionMultiTokenCandidateGenerator`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parlay.checkpoints.files import config_file
from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.checkpoints.quantised.config import quantization_of
from parlay.errors import ConfigError, ModelError
from parlay.models.context import Buffers, ForwardContext
from parlay.models.decoder_layer import DecoderLayer, norm_of
from parlay.models.heads import HeadConfig
from parlay.models.layers import OutputLayer, SplitLinear
from parlay.models.rotary import layer_tables
from parlay.models.tensor_shapes import weight_shapes
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import Start
from parlay.proposers.head_layers import side_by_side
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.proposers.heads import HeadProposer
from parlay.proposers.methods.gemma4_assistant import format as form
from parlay.proposers.methods.gemma4_assistant.layers import describe_layers
from parlay.proposers.methods.gemma4_assistant.output import Centroids, OrderedOutput
from parlay.proposers.shared_passes import shared
from parlay.proposers.target_keys import TargetKeys
from parlay.proposers.target_layers import TargetEmbedding
from parlay.proposers.vocabulary import ids_of
from parlay.runner.batch import Batch
from parlay.runner.graphs import MOST_ROWS

__all__ = ["Options", "Proposer"]

_CENTROIDS, _CHOSEN = 2048, 32  # where the config does not say


class Proposer(HeadProposer):
    """Drafts from the last hidden state and the target's keys, each node from the state and the node before it."""

    source = "gemma4_assistant"
    default_length = 4
    uses_embed_or_lm_head = True

    def __init__(self, options: Options, target: TargetInfo) -> None:
        size = options.draft_tensor_parallel_size
        if target.stages > 1:
            raise ConfigError(
                f"the method {self.source!r} reads the target's own cache, of which pipeline_parallel_size="
                f"{target.stages} leaves each rank some layers; leave one of the two out"
            )
        if size not in (1, target.ranks):
            raise ConfigError(
                f"the method {self.source!r} reads the target's own cache, of which each of {target.ranks} ranks has "
                f"a part, so that draft_tensor_parallel_size={size} is not supported; leave it out"
            )
        super().__init__(replace(options, draft_tensor_parallel_size=target.ranks), target)

    def find(self, options: Options) -> HeadConfig:  # noqa: D102
        head = super().find(options)
        if options.quantization == "auto" and (head.path.is_file() or quantization_of(head.raw)):
            self._storage = "stored"
        return head

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        head, target, dtype = self.head, self._target.config, self._target.dtype
        self.config = config = describe_layers(head, target)
        hidden = head.count("backbone_hidden_size", 1536)
        head.check_target(target, hidden=hidden, vocab=config.vocab_size)
        shapes = weight_shapes(config)
        shapes |= {form.ENTER: (config.hidden_size, 2 * hidden), form.LEAVE: (hidden, config.hidden_size)}
        self._centroids = self._read_centroids()
        if self._centroids is not None:
            shapes |= {form.CENTROIDS: (self._centroids.count, config.hidden_size), form.ORDER: (config.vocab_size,)}
        copies = (form.OUTPUT,) if config.tie_embeddings else ()
        weights.expect(shapes, form.UNUSED + copies)
        self.weight_bytes = weights.size(shapes, dtype) + MOST_ROWS * 4 * config.vocab_size  # logits

    def _read_centroids(self) -> Centroids | None:
        """Return what the config says of centroids; GGUF files have none."""
        head, vocab = self.head, self.config.vocab_size
        if not head.flag("use_ordered_embeddings", False):
            return None
        found = Centroids(head.count("num_centroids", _CENTROIDS), head.count("centroid_intermediate_top_k", _CHOSEN))
        if vocab % found.count or found.chosen > found.count:
            raise ModelError(
                f"{config_file(head.path)}: {vocab} tokens do not divide among {found.count} centroids, of which "
                f"{found.chosen} are chosen"
            )
        return found

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        dtype, kernels, group, config = self._target.dtype, runtime.kernels, runtime.group, self.config
        target, tables = self._target.config, layer_tables(config, self._target.max_model_len)
        self._embedding = TargetEmbedding(runtime.target, group)
        self._scale = float(torch.tensor(target.style.embedding_scale, dtype=dtype))
        self._enter = SplitLinear(kernels, weights.read_weight(form.ENTER, dtype), group)
        self._leave = SplitLinear(kernels, weights.read_weight(form.LEAVE, dtype), group)
        self._norm, self._last_norm = norm_of(config), weights.read(form.NORM, dtype)
        self._layers = [
            DecoderLayer(config, i, TensorReader(weights, dtype, form.LAYER.format(i)), kernels, group, tables[i])
            for i in range(config.num_layers)
        ]
        self._target_caches = tuple(runtime.cache[heads.source] for heads in config.style.heads)
        self._read_output(weights, runtime)
        self._block_size, self._recorded = runtime.block_size, group.size == 1
        self._memory = Buffers(MOST_ROWS, dtype)  # shared by all recordings, of which one runs at a time
        self._spare, self._every = torch.zeros_like(self._hidden), torch.arange(MOST_ROWS)
        self._normed = torch.zeros((MOST_ROWS, config.hidden_size), dtype=dtype)  # states of the layers

    def _read_output(self, weights: Checkpoint, runtime: Runtime) -> None:
        """Read the output layer, of which rank 0 has all if it chooses among centroids."""
        dtype, kernels, config = self._target.dtype, runtime.kernels, self.config
        most, cap = min(config.vocab_size, self._target.config.vocab_size), config.style.logit_cap
        self.ids, self.recordable = ids_of(most, self._target.config.vocab_size), self._centroids is None
        output = weights.read_weight(form.EMBEDDING if config.tie_embeddings else form.OUTPUT, dtype)
        if self._centroids is None:
            self._output = OutputLayer(kernels, output.outputs(0, most), cap=cap, group=runtime.group)
            self._logits = torch.zeros((MOST_ROWS, most))
        elif not runtime.group.rank:
            order, centroids = weights.read(form.ORDER, torch.int64), weights.read_weight(form.CENTROIDS, dtype)
            if not torch.equal(order.sort().values, torch.arange(config.vocab_size)):
                raise ModelError(f"{self.head.path}: {form.ORDER} does not name each token once; it is damaged")
            self._ordered = OrderedOutput(kernels, self._centroids, centroids, output, order, most, cap)

    def load(self, runtime: Runtime) -> None:
        """Read the weights, and allocate what passes read and write."""
        super().load(runtime)
        if not runtime.group.rank:
            self._keys = TargetKeys(self._expander.tokens, runtime.num_blocks, runtime.uploads)

    # --------------------------------------------------------------------------------------------------- drafting

    def place(self, starts: Sequence[Start], width: int = 1) -> None:  # noqa: D102
        self._keys.prepare(starts, width)

    def shift(self, shift: Shift) -> None:  # noqa: D102
        self._keys.shift(shift)

    def gather(self, level: int, origin: Tensor) -> None:  # noqa: D102
        rows = len(origin)
        self._kernels.embed(self._hidden, origin, self._spare[:rows])
        self._kernels.embed(self._spare, self._every[:rows], self._hidden[:rows])

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        inputs = self.read_by(self._keys.batch(level, rows, width), self._block_size, recorded=self._recorded)
        self._continue(inputs, self._hidden[:rows], self._normed[:rows])

    @shared
    def _continue(self, inputs: Batch, hidden: Tensor, normed: Tensor) -> None:
        """Run nodes with the states `[rows, H]` before them, which are replaced; write those of the layers."""
        kernels, (rows, width) = self._kernels, hidden.shape
        buffers = Buffers(rows, self._target.dtype, self._memory)
        context = ForwardContext(kernels, inputs.positions, inputs.slots, inputs.view, self._target_caches, buffers)
        pair = buffers("pair", 2 * width).view(2, rows, width)
        self._embedding(inputs.tokens, pair[0])
        if self._scale != 1:
            kernels.scale(pair[0], self._scale)
        kernels.embed(hidden, self._every[:rows], pair[1])
        joined, residual = buffers("joined", 2 * width), buffers("residual", self.config.hidden_size)
        side_by_side(pair, kernels, joined)
        self._enter(joined, residual)
        delta: Tensor | None = None
        for layer, cache in zip(self._layers, self._target_caches, strict=True):
            delta = layer(residual, delta, context, cache)
        self._norm(kernels, residual, delta, self._last_norm, normed)
        self._leave(normed, hidden)

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        normed = self._normed[:rows]
        return self._own_logits(normed) if self._centroids is None else self._ordered(normed)

    @shared
    def _own_logits(self, normed: Tensor) -> Tensor:
        return self._output(normed, self._logits[: len(normed)])
