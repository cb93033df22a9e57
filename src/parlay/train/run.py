"""A training run: it ends with the same weights however often it is stopped and resumed.

On the CPU, with the same number of threads, this holds bit for bit.
"""

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parlay.checkpoints.find import find_model
from parlay.device import find_device
from parlay.errors import ConfigError
from parlay.models.config import ModelConfig
from parlay.numerics.digests import digest_model
from parlay.proposers.select import explain_if_draft_head
from parlay.text.tokenizer import TextCodec
from parlay.train.data import Text, digest, read_texts, sample, split
from parlay.train.model_card import Figures, card
from parlay.train.options import TrainOptions
from parlay.train.prompts import header_of, write_prompts
from parlay.train.responses import write_responses
from parlay.train.save import load_checkpoint, lock_directory, save_checkpoint, save_head
from parlay.train.teacher import Teacher, describe_target
from parlay.train.trainee import Trainee, distil, methods

_BETAS = (0.9, 0.95)
_PLACES = ("target", "data", "output")  # the files there count, and have digests


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """A run's progress.

    Attributes:
        doing: `prompts`, `responses` or `training`.
        done, total: prompts, responses or steps done, and in total.
        loss: loss of the last step, or None.
        figures: the newest figures, or None.
    """

    doing: str
    done: int
    total: int
    loss: float | None = None
    figures: Figures | None = None


Watch = Callable[[TrainProgress], None]


def train(method: str, options: TrainOptions, own: Any = None, watch: Watch = lambda progress: None) -> Figures:
    """Train a head for a target, and write it to `options.output` in its public format.

    Args:
        method: a proposer that can be trained.
        options: options that every training has.
        own: the method's `Options`; None takes their defaults.
        watch: called after every step and measurement.

    Returns:
        The head's figures in the end, on held-out texts.

    Raises:
        ConfigError: bad options or data, or `output` holds another run or a finished head.
        ModelError: the target cannot be read or served, or has no head of this kind.
    """
    module = methods.load(method)
    own = module.Options() if own is None else own
    output = Path(options.output)
    if (output / "config.json").exists():
        raise ConfigError(f"{output} already holds a model; give another output")
    data = None if options.data is None else Path(options.data)
    if data is not None and data.is_dir() and output.resolve().is_relative_to(data.resolve()):
        raise ConfigError(
            f"{output} lies within {data}, so the run would train on its own files; give another output"
        )
    find_device(options.device)
    if options.autocast is None:
        options = replace(options, autocast=options.device == "cuda" or _multiplies_bfloat16())
    path = find_model(options.target)
    with explain_if_draft_head(options.target, path):
        target = describe_target(options)
        codec = TextCodec(path)
    module.Trainee.check(own, target)
    texts: list[Text] = []
    if data is None:
        header_of(codec)  # a target that does not chat is refused before anything is written
    else:
        texts = read_texts(data, codec, target.vocab_size, options.max_length, prompts=options.generate > 0)
    work = output / "training"
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written to: {error.strerror}") from None
    with lock_directory(work):
        return _train(method, options, own, target, codec, texts, watch)


def _multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it that torch uses; without, float32 is several times as fast."""
    if platform.machine() in ("x86_64", "AMD64"):  # where oneDNN also emulates them, with AVX512
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _train(
    method: str,
    options: TrainOptions,
    own: Any,
    target: ModelConfig,
    codec: TextCodec,
    texts: list[Text],
    watch: Watch,
) -> Figures:
    output, work, path = Path(options.output), Path(options.output) / "training", target.path
    weights = digest_model(path)[:16]
    identity = {
        "method": method,
        "target_weights": weights,
        **{key: value for key, value in asdict(options).items() if key not in _PLACES},
        **{f"{method}.{key}": value for key, value in asdict(own).items()},
    }
    load_checkpoint(work / "checkpoint.pt", identity)  # another run's is refused before anything is written
    if options.data is None:

        def tick_prompts(done: int) -> None:
            watch(TrainProgress("prompts", done, options.generate))

        texts = write_prompts(work / "prompts.jsonl", options, weights, codec, tick_prompts)
    if options.generate:

        def tick_responses(done: int) -> None:
            watch(TrainProgress("responses", done, options.generate))

        texts = write_responses(work / "responses.jsonl", texts, options, weights, target.vocab_size, tick_responses)
    teacher = Teacher(options)  # only now, so that the target's weights are in memory once while it writes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        learnt, held_out = split(texts, options)
        run = _Training(methods.load(method).Trainee(own, teacher, learnt), teacher, learnt, held_out, options)
        run.identity = {**identity, "texts": digest(texts)}
        figures = run.finish(work / "checkpoint.pt", watch)
        text = card(method, options, own, (learnt, held_out), run.untrained, figures, run.steps)
    save_head(output, run.trainee, teacher.dtype, text, path)
    (work / "checkpoint.pt").unlink(missing_ok=True)
    if not any(work.iterdir()):
        work.rmdir()
    return figures


class _Training:
    """Weights, optimiser, and position in the data."""

    identity: dict[str, Any]

    def __init__(
        self, trainee: Trainee, teacher: Teacher, texts: list[Text], held_out: list[Text], options: TrainOptions
    ) -> None:
        self.options, self.teacher = options, teacher
        self.trainee = trainee.to(options.device)
        self.texts, self.held_out = texts, held_out
        # Measurements on the way are to cost little beside learning.
        self.sample = sample(held_out, max(16, options.evaluate_every * options.batch_size // 10))
        self.steps = options.epochs * -(-len(self.texts) // options.batch_size)
        if options.max_steps is not None:
            self.steps = min(self.steps, options.max_steps)
        matrices = [p for p in trainee.parameters() if p.ndim > 1]
        vectors = [p for p in trainee.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=options.learning_rate,
            betas=_BETAS,
            fused=True,
        )
        self.step = 0
        self.untrained = Figures(math.nan, ())

    def finish(self, checkpoint: Path, watch: Watch) -> Figures:
        """Continue from the checkpoint if there is one, to the last step; return the head's figures then."""
        state = load_checkpoint(checkpoint, self.identity)
        if state is None:
            figures = self.untrained = self.measure(self.held_out)
        else:
            try:
                figures = self._restore(state)
            except (LookupError, TypeError, ValueError, RuntimeError, AttributeError):
                raise ConfigError(
                    f"{checkpoint} does not fit this version of parlay; resume with the one that wrote it, or "
                    "delete it to start over"
                ) from None
        watch(TrainProgress("training", self.step, self.steps, None, figures))
        while self.step < self.steps:
            loss = self._train_step(self._batch())
            if not math.isfinite(loss):
                raise ConfigError(f"the loss is {loss} at step {self.step}; lower the learning_rate")
            if self.step % self.options.evaluate_every == 0 or self.step == self.steps:
                figures = self.measure(self.held_out if self.step == self.steps else self.sample)
                if not math.isfinite(figures.loss):  # the last update was too large, and its loss is not yet known
                    raise ConfigError(f"the loss is {figures.loss} after step {self.step}; lower the learning_rate")
                save_checkpoint(checkpoint, self._state(figures), self.identity)
            watch(TrainProgress("training", self.step, self.steps, loss, figures))
        return figures

    def _batch(self) -> list[Text]:
        """Return the texts of this step; every epoch has them in another order."""
        size = self.options.batch_size
        epoch, at = divmod(self.step, -(-len(self.texts) // size))
        order = np.random.default_rng((self.options.seed, epoch)).permutation(len(self.texts))
        return [self.texts[i] for i in order[at * size : (at + 1) * size]]

    def _train_step(self, texts: Sequence[Text]) -> float:
        """Take a step; return its loss in nats per node."""
        rate = self.options.learning_rate * schedule(self.step, self.steps, self.options.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        total, labels = 0.0, 0
        for part in self.teacher.parts(texts):
            losses, _, counts = self._losses(part)
            if sum(counts):
                weighted = torch.stack([loss * self.trainee.decay**i for i, loss in enumerate(losses)])
                weighted.sum().backward()  # type: ignore[no-untyped-call]
            total, labels = total + sum(float(loss.detach()) for loss in losses), labels + sum(counts)
        self.step += 1
        if not labels:
            return 0.0
        parameters = [p for p in self.trainee.parameters() if p.grad is not None]
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= labels
        torch.nn.utils.clip_grad_norm_(parameters, self.options.clip)
        self.optimizer.step()
        return total / labels

    def _losses(self, texts: Sequence[Text]) -> tuple[list[Tensor], list[Tensor], list[int]]:
        """Return for each node the summed loss, how often it is right, and how many labels it has."""
        batch = self.teacher.batch(texts)
        losses, right, counts = [], [], []
        with torch.autocast(self.options.device, torch.bfloat16, enabled=bool(self.options.autocast)):
            for step in self.trainee.draft(batch):
                loss, good = distil(step, batch)
                losses.append(loss)
                right.append(good)
                counts.append(len(step.labels))
        return losses, right, counts

    @torch.no_grad()
    def measure(self, texts: Sequence[Text]) -> Figures:
        """Return the head's figures on texts."""
        size, count = self.options.batch_size, self.trainee.depth
        loss, right, labels = 0.0, np.zeros(count), np.zeros(count)
        for first in range(0, len(texts), size):
            for part in self.teacher.parts(texts[first : first + size]):
                found = self._losses(part)
                if not sum(found[2]):
                    continue
                loss += sum(map(float, found[0]))
                right += [float(good) for good in found[1]]
                labels += found[2]
        return Figures(loss / max(1.0, float(labels.sum())), tuple((right / np.maximum(1, labels)).tolist()))

    def _state(self, figures: Figures) -> dict[str, Any]:
        return {
            "trainee": self.trainee.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "step": self.step,
            "untrained": asdict(self.untrained),
            "figures": asdict(figures),
        }

    def _restore(self, state: dict[str, Any]) -> Figures:
        self.trainee.load_state_dict(state["trainee"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.step = state["step"]
        self.untrained = Figures(**state["untrained"])
        return Figures(**state["figures"])


def schedule(step: int, steps: int, warmup: float) -> float:
    """Return the factor on the learning rate: it rises linearly to 1, then falls to 0 as half a cosine.

    Args:
        step: the step, from 0 on.
        steps: steps of the run.
        warmup: share of them in which it rises.
    """
    rising = warmup * steps
    if step + 1 < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, (step - rising) / max(1.0, steps - rising)))))
