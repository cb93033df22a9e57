"""The target as a teacher: its hidden states and distributions of whole texts, by the engine's own runner."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from parlay import env
from parlay.errors import ConfigError, ModelError
from parlay.kernels.select import select_kernels
from parlay.log import logger
from parlay.models.config import ModelConfig
from parlay.models.decoder import Decoder
from parlay.models.select import check_weights, describe_model, load_model, resolve_dtype
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner
from parlay.train.accelerated import AcceleratedTarget, accelerate
from parlay.train.data import Text
from parlay.train.options import TrainOptions

_BLOCK = 16
_ROWS = 1024  # of one pass, unless a single text is longer
_HEAD_ROWS = 64
_WIDE = 16  # times as many rows on an accelerator, which small passes leave idle
_LIKE = 0.1  # by how much its states may differ from the engine's, relative to their norm
_SHARE = 0.5  # share of the memory that is free at first: most that may hold states for later epochs


@dataclass(frozen=True, slots=True, eq=False)
class TargetOutput:
    """An output layer.

    Attributes:
        weight: `[V, D]`, or `[n, D]` of a part of the vocabulary.
        cap: soft cap of logits; 0 is none.
        ids: `[n]`, the tokens of that part; None is the whole.
        further: `[V, r]` or `[n, r]`, what is multiplied with further columns of states; None where there are none.
    """

    weight: Tensor
    cap: float = 0.0
    ids: Tensor | None = None
    further: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TeacherBatch:
    """Texts one after another, and the target's distribution of each token's successor.

    Attributes:
        tokens: `[rows]` int64.
        text: `[rows]`, which text each row is of.
        loss_mask: `[rows]`, whether a token counts as a label.
        hidden: `[rows, H]` float32, the target's states after its final norm.
        target_probs: `[rows, V]` float32, its distributions of the next token; `[rows, n]` of the tokens that
            `Teacher.restrict_vocabulary` named.
        best: `[rows]` int64, the likeliest token of all.
        tapped: `[rows, H]` float32 each, the residual stream where `Teacher.tap` says.
    """

    tokens: Tensor
    text: Tensor
    loss_mask: Tensor
    hidden: Tensor
    target_probs: Tensor
    best: Tensor
    tapped: tuple[Tensor, ...] = ()

    def starts(self, ahead: int) -> Tensor:
        """Return the rows whose text has an `ahead`-th next token that counts.

        The target's distribution of that token is in the row before it.
        """
        if len(self.text) <= ahead:
            return torch.zeros(0, dtype=torch.int64, device=self.text.device)
        return ((self.text[:-ahead] == self.text[ahead:]) & self.loss_mask[ahead:]).nonzero()[:, 0]


def describe_target(options: TrainOptions) -> ModelConfig:
    """Return the target's shape, reading no weights.

    Raises:
        ConfigError: an option does not fit it.
        ModelError: it cannot be found or served.
    """
    # A head learns from plain numbers: rows in eight bits would only add noise to what it is to predict.
    config = replace(describe_model(options.target), storage="plain")
    resolve_dtype(options.dtype, config)
    served = options.max_model_len or config.max_position
    if served > config.max_position:
        raise ConfigError(
            f"max_model_len={served} is beyond the {config.max_position} positions of the target; lower it"
        )
    if options.max_length > served:
        raise ConfigError(f"max_length={options.max_length} is beyond the {served} positions of the target; lower it")
    return config


class Teacher:
    """The target, whose weights do not change.

    Attributes:
        config: the target's config.
        dtype: dtype that it computes in.
        longest: length of the longest sequence that it is to be served with.
    """

    def __init__(self, options: TrainOptions) -> None:
        """Load the target.

        Raises:
            ConfigError: an option does not fit it.
            ModelError: it cannot be found, read or served.
        """
        self.config = describe_target(options)
        self.dtype = resolve_dtype(options.dtype, self.config)
        check_weights(self.config)
        torch.set_num_threads(env.threads())
        kernels = select_kernels()
        kernels.set_threads(env.threads())
        self.longest = options.max_model_len or self.config.max_position
        model = load_model(self.config, self.dtype, self.longest, kernels)
        rows = max(_ROWS, options.max_length)
        self._runner = ModelRunner(model, kernels, rows // _BLOCK + options.batch_size + 1, _BLOCK)
        self._device = torch.device(options.device)
        self._ids: Tensor | None = None
        self._known: dict[Text, tuple[Tensor, ...]] = {}
        self._accelerated = None if options.device == "cpu" else self._accelerate()
        self._rows = rows if self._accelerated is None else rows * _WIDE
        again = options.epochs > 1 and self._accelerated is None
        self._room = int(_SHARE * env.available_memory()) if again else 0

    def tap(self, layers: tuple[int, ...]) -> None:
        """Let every batch give the residual stream after so many layers; before the first batch.

        Only a target that `exposes_hidden_states` can.
        """
        self._runner.tap(layers)
        if self._accelerated is not None:
            self._accelerated.tap(layers)

    def restrict_vocabulary(self, ids: Tensor) -> None:
        """Let every batch give the target's distributions of these tokens `[n]` alone, not scaled to sum to 1."""
        self._ids = ids

    def parts(self, texts: Sequence[Text]) -> list[list[Text]]:
        """Return texts in groups that one pass can take."""
        groups: list[list[Text]] = []
        room = 0
        for text in texts:
            if len(text.tokens) > room or not groups:
                groups.append([])
                room = self._rows
            groups[-1].append(text)
            room -= len(text.tokens)
        return groups

    @torch.no_grad()
    def batch(self, texts: Sequence[Text]) -> TeacherBatch:
        """Run the target over a group of `parts`; over each text once, as far as memory holds the results."""
        new = [text for text in texts if text not in self._known]
        run = self._states if self._accelerated is None else self._accelerated.states
        found = dict(zip(new, run(new), strict=True)) if new else {}
        states = [found[text] if text in found else self._known[text] for text in texts]
        for text, own in found.items():
            size = sum(state.nbytes for state in own)
            if size <= self._room:
                self._known[text] = own
                self._room -= size
        hidden, *tapped = (torch.cat(parts) for parts in zip(*states, strict=True))
        target_probs, best = self._answers(hidden)
        lengths = torch.tensor([len(text.tokens) for text in texts])
        device = self._device
        return TeacherBatch(
            tokens=torch.from_numpy(np.concatenate([text.tokens for text in texts])).long().to(device),
            text=torch.repeat_interleave(torch.arange(len(texts)), lengths).to(device),
            loss_mask=torch.from_numpy(np.concatenate([text.loss_mask for text in texts])).to(device),
            hidden=hidden.float().to(device),
            target_probs=target_probs.to(device),
            best=best.to(device),
            tapped=tuple(state.float().to(device) for state in tapped),
        )

    def _answers(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return `TeacherBatch.target_probs` and `TeacherBatch.best` of final states, a few rows at a time."""
        width = self.config.vocab_size if self._ids is None else len(self._ids)
        ids = None if self._ids is None else self._ids.to(hidden.device)
        target_probs = torch.empty((len(hidden), width), device=hidden.device)
        best = torch.empty(len(hidden), dtype=torch.int64, device=hidden.device)
        size = _HEAD_ROWS if self._accelerated is None else _HEAD_ROWS * _WIDE
        for first in range(0, len(hidden), size):
            rows = slice(first, first + size)
            probs = self._logits(hidden[rows]).softmax(-1)
            target_probs[rows] = probs if ids is None else probs[:, ids]
            best[rows] = probs.argmax(-1)
        return target_probs, best

    def _logits(self, hidden: Tensor) -> Tensor:
        if self._accelerated is None:
            return self._runner.model.logits(hidden.contiguous())
        logits = linear(hidden, self._head.weight).float()
        return self._head.cap * torch.tanh(logits / self._head.cap) if self._head.cap else logits

    def _accelerate(self) -> AcceleratedTarget | None:
        """Return the target's layers on the accelerator, if their states agree with the engine's."""
        found = accelerate(self.config.path, self.dtype, self._device)
        if found is None:
            return None
        self._head = self.output()
        self._head = TargetOutput(self._head.weight.to(self.dtype), self._head.cap)
        trial = Text.of([], [token % self.config.vocab_size for token in range(7, 7 * 33, 7)])
        expected, given = self._states([trial])[0][0].float(), found.states([trial])[0][0].float().cpu()
        if not float((given - expected).norm() / expected.norm()) < _LIKE:
            logger.warning("the target stays on the CPU: transformers computes other hidden states than the engine")
            return None
        return found

    def _states(self, texts: Sequence[Text]) -> list[tuple[Tensor, ...]]:
        """Return of each text the states after the final norm and, `[length, H]` all of them, where it is tapped.

        They are in the target's dtype and, like all that the engine computes, independent of what else is in a pass.
        """
        segments: list[Segment] = []
        blocks = 0
        for text in texts:
            own = range(blocks, blocks + -(-len(text.tokens) // _BLOCK))
            segments.append(Segment(text.tokens.tolist(), 0, own))
            blocks = own.stop
        hidden = self._runner.forward(flatten(segments, _BLOCK, recurrent=self._runner.recurrent))
        lengths = [len(text.tokens) for text in texts]
        each = [[part.clone() for part in torch.split(state, lengths)] for state in (hidden, *self._runner.tapped)]
        return list(zip(*each, strict=True))

    def embedding(self) -> Tensor:
        """Return the embedding `[V, H]` of a target that lends it, in float32."""
        model = self._runner.model
        assert isinstance(model, Decoder)
        return model.embedding.numbers(torch.float32).to(self._device)

    @torch.no_grad()
    def output(self) -> TargetOutput:
        """Return the target's output layer as one matrix, computed from unit vectors.

        Raises:
            ModelError: it is more than a matrix.
        """
        width, cap = self.config.hidden_size, self.config.style.logit_cap
        logits = self._runner.model.logits
        columns = [logits(part.contiguous()) for part in torch.split(torch.eye(width, dtype=self.dtype), _HEAD_ROWS)]
        weight = torch.cat(columns).T.contiguous()
        if cap:
            weight = cap * torch.atanh(weight / cap)
        trial = torch.randn((4, width), generator=torch.Generator().manual_seed(0)).to(self.dtype)
        expected, found = logits(trial), linear(trial.float(), weight)
        found = cap * torch.tanh(found / cap) if cap else found
        if not float((found - expected).abs().max()) < 0.02 * float(expected.std()) + 1e-3:
            raise ModelError(
                f"the output layer of {self.config.path} is no plain matrix; no head can be trained on top of it"
            )
        return TargetOutput(weight.to(self._device), cap)
