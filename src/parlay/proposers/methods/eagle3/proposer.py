"""EAGLE-3: a decoder layer on the target's early, middle and late states, with its own output layer.

Idea: Li et al. 2025 (arXiv 2503.01840). Unlike EAGLE's, it need not predict the target's states: its output for a
pair is its own state, goes back in as it is, and it was trained that way. Its vocabulary may be reduced to the
commonest tokens, which makes a node far cheaper. Drafts are chains, or EAGLE-2's dynamic trees.

Reads its authors' layout, that of the `speculators` library, and what others put into `eagle_config`. Loses where the
target's text has many tokens that the reduced vocabulary lacks.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.errors import ModelError, shown
from parlay.models.context import ForwardContext
from parlay.models.heads import HeadConfig, layer_config
from parlay.models.layers import OutputLayer, SplitLinear
from parlay.models.select import records_logits
from parlay.models.tensor_shapes import attention_shapes, mlp_shapes
from parlay.proposers.base import Runtime
from parlay.proposers.block_config import check_taps, proposed_length
from parlay.proposers.feature_head import FeatureHead
from parlay.proposers.head_layers import HeadLayers, side_by_side
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.proposers.methods.eagle3 import format as form
from parlay.proposers.shared_passes import shared
from parlay.proposers.target_layers import output_layer
from parlay.proposers.vocabulary import checked_ids, fitted, ids_of
from parlay.runner.graphs import MOST_ROWS

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {"model": "tiny-code-eagle3"}
_NORM = "input_layernorm.weight"  # before a further layer's attention, as `HeadLayers` asks for it
_LONGEST = 64  # draft tokens that a config may propose


class Proposer(FeatureHead):
    """Drafts from three of the target's states, each node from the head's own state and the node before."""

    source = "eagle3"
    uses_embed_or_lm_head = True

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        head, target, names = self.head, self._target, weights.names
        nested = head.raw.get("transformer_layer_config") is not None
        layers = head.raw["transformer_layer_config"] if nested else head.raw
        if not isinstance(layers, dict):
            raise ModelError(f"{head.path / 'config.json'}: transformer_layer_config must be an object")
        prefix = next((own for own in form.FIRST if any(name.startswith(own) for name in names)), form.FIRST[-1])
        self.config = config = layer_config(head, layers, prefix, names)
        self._prefixes = [prefix, *(f"layers.{i}." for i in range(1, config.num_layers))]
        self._settings = settings = _settings(head)
        inner = target.config.hidden_size
        head.check_target(target.config, hidden=head.count(form.TARGET_WIDTH, inner), vocab=config.vocab_size)
        self.taps = _taps(head, settings, target.config.num_layers)
        check_taps(head, self.taps, target.config)
        self._keeps_norm = settings.flag("norm_before_residual", nested)
        self._feeds_norm = settings.flag("norm_output", False)
        self.default_length = proposed_length(head, _LONGEST) or self.default_length
        shapes = self._shapes(weights)
        fused = weights.shape(form.FUSE) if form.FUSE in names else ()
        if len(fused) == 2 and fused[1] != len(self.taps) * inner and fused[1] % len(self.taps) == 0:
            head.check_target(target.config, hidden=fused[1] // len(self.taps))
        weights.expect(shapes, (".rotary_emb.inv_freq", form.KNOWN))
        read = {name: shape for name, shape in shapes.items() if name != form.OFFSETS}
        self.weight_bytes = weights.size(read, target.dtype) + (MOST_ROWS * 4 + 8) * self._vocab

    def _shapes(self, weights: Checkpoint) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors that are read, and note which there are."""
        head, target, config, names = self.head, self._target, self.config, weights.names
        width, states = config.hidden_size, len(self.taps) * target.config.hidden_size
        self._vocab = self._settings.count(form.VOCAB, config.vocab_size)
        shapes: dict[str, tuple[int, ...]] = {form.FUSE: (width, states), form.NORM: (width,)}
        self._biased = form.FUSE_BIAS in names
        if self._biased:
            shapes[form.FUSE_BIAS] = (width,)
        self._input_norm = self._settings.flag("norm_before_fc", form.NORM_OF_ALL in names)
        if self._input_norm:
            shapes[form.NORM_OF_ALL] = (states,)
        former = form.STATE_NORMS[1][0] in names
        self._state_norms: tuple[str, ...] = ()
        if self._settings.flag(
            "fc_norm", self._settings.flag("use_aux_norm", former or form.STATE_NORMS[0][0] in names)
        ):
            current = tuple(f"fc_norm.{i}.weight" for i in range(len(self.taps)))
            self._state_norms = form.STATE_NORMS[1] if former else current
            shapes |= dict.fromkeys(self._state_norms, (target.config.hidden_size,))
        if self.needs_embedding(weights):
            head.check_target(target.config, hidden=width)
        else:
            shapes[form.EMBEDDING] = (config.vocab_size, width)
        # Without its own output layer the head uses the target's, which has the whole vocabulary.
        self._own_output = form.OUTPUT in names or (self._vocab, width) != (
            config.vocab_size,
            target.config.hidden_size,
        )
        if self._own_output:
            shapes[form.OUTPUT] = (self._vocab, width)
        self._mapped = form.OFFSETS in names or self._vocab != config.vocab_size
        if self._mapped:
            shapes[form.OFFSETS] = (self._vocab,)
        for i, prefix in enumerate(self._prefixes):
            own = {**attention_shapes(config), **mlp_shapes(config, i), form.AFTER: (width,)}
            if i:
                own[self._norm_before(weights, i)] = (width,)
            else:
                own |= dict.fromkeys((form.STATE, form.TOKEN), (width,))
                for name in "qkv":
                    rows, columns = own[f"self_attn.{name}_proj.weight"]
                    own[f"self_attn.{name}_proj.weight"] = (rows, 2 * columns)
            shapes |= {prefix + name: shape for name, shape in own.items()}
        return shapes

    def _norm_before(self, weights: Checkpoint, layer: int) -> str:
        """Return the name of the norm before a further layer's attention, of which two are in use."""
        other = form.STATE
        return other if self._prefixes[layer] + other in weights.names else "input_layernorm.weight"

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        dtype, kernels, group, target = self._target.dtype, runtime.kernels, runtime.group, runtime.target
        self.recordable = self._own_output or records_logits(target)
        self._embedding = self.read_embedding(weights, runtime)
        bias = weights.read(form.FUSE_BIAS, dtype) if self._biased else None
        self._fuse = SplitLinear(kernels, weights.read_weight(form.FUSE, dtype), group, bias)
        self._norm_of_all = weights.read(form.NORM_OF_ALL, dtype) if self._input_norm else None
        self._norms_of_states = [weights.read(name, dtype) for name in self._state_norms]
        self._token_norm = weights.read(self._prefixes[0] + form.TOKEN, dtype)
        self._state_norm = weights.read(self._prefixes[0] + form.STATE, dtype)
        self._norm = weights.read(form.NORM, dtype)
        self._output: OutputLayer | None = None
        if self._own_output:
            most = self._vocab if self._mapped else min(self._vocab, self._target.config.vocab_size)
            output = weights.read_weight(form.OUTPUT, dtype)
            self._output = OutputLayer(kernels, fitted(output, most), group=group)
            self._logits = torch.zeros((MOST_ROWS, most))
        else:
            self._target_logits = output_layer(target, MOST_ROWS)
        self._normed = torch.zeros((MOST_ROWS, self.config.hidden_size), dtype=dtype)
        if self._mapped:
            self.ids = self._read_ids(weights)
        elif self._own_output:
            self.ids = ids_of(self._vocab, self._target.config.vocab_size)
        read = [
            TensorReader(weights, dtype, prefix, {_NORM: self._norm_before(weights, i)} if i else None)
            for i, prefix in enumerate(self._prefixes)
        ]
        self._body = HeadLayers(self.config, self._target.max_model_len, read, kernels, group)

    def _read_ids(self, weights: Checkpoint) -> Tensor:
        ids = torch.arange(self._vocab) + weights.read(form.OFFSETS, torch.int64)
        return checked_ids(ids, self._target.config.vocab_size, f"{self.head.path}: {form.OFFSETS}")

    def combine_states(self, parts: Tensor, state: Tensor, context: ForwardContext) -> None:  # noqa: D102
        kernels, eps = context.kernels, self.config.rms_norm_eps
        for part, norm in zip(parts, self._norms_of_states, strict=False):
            kernels.rms_norm(part, norm, eps, part)
        states = context.buffers("states", parts.shape[0] * parts.shape[2])
        side_by_side(parts, kernels, states)
        if self._norm_of_all is not None:
            kernels.rms_norm(states, self._norm_of_all, eps, states)
        self._fuse(states, state)

    def run_pairs(self, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:  # noqa: D102
        kernels, (rows, width), eps = context.kernels, state.shape, self.config.rms_norm_eps
        pair = context.buffers("pair", 2 * width).view(2, rows, width)
        self._embedding(tokens, pair[0])
        kernels.rms_norm(pair[0], self._token_norm, eps, pair[0])
        kernels.rms_norm(state, self._state_norm, eps, pair[1])
        joined = context.buffers("joined", 2 * width)
        side_by_side(pair, kernels, joined)
        if self._keeps_norm:
            kernels.embed(pair[1], torch.arange(rows), state)
        self._body(joined, state, context)
        if self._feeds_norm:
            kernels.rms_norm(state, self._norm, eps, state)

    def logits(self, state: Tensor) -> Tensor:  # noqa: D102
        rows = len(state)
        normed = state
        if not self._feeds_norm:
            normed = self._normed[:rows]
            self._kernels.rms_norm(state, self._norm, self.config.rms_norm_eps, normed)
        return self._target_logits(normed) if self._output is None else self._own_logits(normed)

    @shared
    def _own_logits(self, normed: Tensor) -> Tensor:
        assert self._output is not None
        return self._output(normed, self._logits[: len(normed)])


def _settings(head: HeadConfig) -> HeadConfig:
    """Return the head's config, with values from `eagle_config` where it has none."""
    inner = head.raw.get("eagle_config") or {}
    if not isinstance(inner, dict):
        raise ModelError(f"{head.path / 'config.json'}: eagle_config must be an object, not {shown(inner)}")
    return HeadConfig(head.path, {**inner, **{key: value for key, value in head.raw.items() if value is not None}})


def _taps(head: HeadConfig, settings: HeadConfig, layers: int) -> tuple[int, ...]:
    """Return after how many of the target's layers the head reads its states, ascending.

    Listed at the top, ids count layers that have run; in `eagle_config` they name the last layer that has. The
    authors' own heads list none, and those of others may have an empty list.

    Raises:
        ModelError: ids that are no layer numbers.
    """
    if not settings.flag("use_aux_hidden_state", True):
        raise ModelError(
            f"{head.path / 'config.json'}: use_aux_hidden_state=False is not supported; only heads that read states "
            "between the target's layers are"
        )
    listed = settings.raw.get(form.TAPS)
    if listed is None or listed == []:
        found = {2, layers // 2, layers - 3}
        if len(found) < 3 or min(found) < 0:
            raise ModelError(
                f"the draft head {head.path} lists no {form.TAPS}, and a target of {layers} layers is too small for "
                "those that are usual; the head was made for another target"
            )
        return tuple(sorted(found))
    if not isinstance(listed, list) or not all(type(i) is int and i >= 0 for i in listed):
        raise ModelError(
            f"{head.path / 'config.json'}: {form.TAPS} must list whole numbers of at least 0, not {shown(listed)}"
        )
    inside = head.raw.get(form.TAPS) is None
    return tuple(sorted({i + inside for i in listed}))
