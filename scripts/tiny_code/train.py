"""Train the target on the corpus, or the draft on the corpus and the target's logits.

The learning rate follows whichever is further on, the tokens or the clock, so a
run ends within ``--minutes`` however busy the machine is.  It resumes from its
last checkpoint.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from model import SHAPES, Model
from tokenizer import ASSETS, END, SPECIAL_TOKENS, texts
from tokenizers import Tokenizer
from torch import Tensor

BLOCK = 1024
STAGES = ((0.60, 256), (0.85, 512), (1.01, 1024))  # (until this progress, sequence length)
WARMUP_STEPS = 80
DECAY_FROM = 0.40
CLIP = 1.0
MICRO_TOKENS = 2048
LOSS_ROWS = 64
WORKERS = 2  # single-threaded halves of a step: immune to barriers on a busy machine
DISTILL_FROM = 0.4  # the draft learns from the corpus alone until this progress
DISTILL_WEIGHT = 0.9
SAMPLED_EVERY, SAMPLED_LENGTH = 4, 256  # then one step in four is on the target's own text
SAVE_EVERY_S = 180.0
LOG_EVERY = 20
SEED = 1234


@dataclass(frozen=True)
class Recipe:
    """The hyper-parameters of one role."""

    tokens: int
    step_tokens: int
    matrix_lr: float
    vector_lr: float
    weight_decay: float


RECIPES = {
    "target": Recipe(25_000_000, 8192, matrix_lr=4e-3, vector_lr=3e-3, weight_decay=0.1),
    "draft": Recipe(24_000_000, 8192, matrix_lr=6e-3, vector_lr=6e-3, weight_decay=0.0),
}


def load_tokens(work: Path, split: str) -> np.ndarray:
    """Return the split as one stream, each document after an end-of-text token."""
    cache = work / f"{split}.npy"
    if not cache.exists():
        tokenizer = Tokenizer.from_file(str(ASSETS / "tiny-code/tokenizer.json"))
        end = SPECIAL_TOKENS.index(END)
        stream: list[int] = []
        batch: list[str] = []
        for text in texts(work / f"{split}.jsonl"):
            batch.append(text)
            if len(batch) == 256:
                for encoding in tokenizer.encode_batch(batch):
                    stream += [end, *encoding.ids]
                batch = []
        for encoding in tokenizer.encode_batch(batch):
            stream += [end, *encoding.ids]
        np.save(cache, np.array([*stream, end], dtype=np.uint16))
    tokens: np.ndarray = np.load(cache, mmap_mode="r")
    return tokens


def step_blocks(stream: np.ndarray, step: int, count: int) -> Tensor:
    """Return the step's blocks of BLOCK + 1 tokens, shuffled anew every epoch."""
    total = (len(stream) - 1) // BLOCK
    rows = []
    for index in range(step * count, (step + 1) * count):
        order = np.random.default_rng(SEED + index // total).permutation(total)
        start = int(order[index % total]) * BLOCK
        rows.append(stream[start : start + BLOCK + 1].astype(np.int64))
    return torch.from_numpy(np.stack(rows))


def learning_rate_scale(step: int, progress: float) -> float:
    """Warm up, hold, then decay linearly to zero."""
    decay = (1 - progress) / (1 - DECAY_FROM)
    return max(0.0, min((step + 1) / WARMUP_STEPS, decay, 1.0))


def make_optimizers(model: Model, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, in two equal shares; AdamW for the rest."""
    layers = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not q for q in layers)]
    muons = [
        torch.optim.Muon(
            layers[share::WORKERS],
            lr=recipe.matrix_lr,
            weight_decay=recipe.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        for share in range(WORKERS)
    ]
    rest = torch.optim.AdamW(others, lr=recipe.vector_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [*muons, rest]


class CrossEntropy(torch.autograd.Function):
    """Summed cross-entropy against the labels, mixed with the teacher's distribution.

    Rows are taken a few at a time, so that the float32 copies stay in the cache.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, wanted: Tensor | None) -> Tensor:
        """Return the loss; the gradient is worked out on the way."""
        hard = 1.0 if wanted is None else 1.0 - DISTILL_WEIGHT
        grad = torch.empty_like(logits)
        loss = torch.zeros(())
        for start in range(0, len(logits), LOSS_ROWS):
            rows = slice(start, start + LOSS_ROWS)
            log_p = logits[rows].float().log_softmax(-1)
            label = labels[rows, None]
            loss -= hard * log_p.gather(1, label).sum()
            slope = log_p.exp().scatter_add_(1, label, torch.full(label.shape, -hard))
            if wanted is not None:
                soft = DISTILL_WEIGHT * wanted[rows].float().softmax(-1)
                loss -= (soft * log_p).sum()
                slope -= soft
            grad[rows] = slope
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        """Scale the gradient."""
        return ctx.saved_tensors[0].mul_(slopes[0]), None, None


def loss_of(model: Model, teacher: Model | None, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss summed over the tokens."""
    wanted = None
    if teacher is not None:
        with torch.no_grad():
            wanted = teacher(inputs).flatten(0, 1)
    logits = model(inputs).flatten(0, 1)
    loss: Tensor = CrossEntropy.apply(logits, labels.flatten(), wanted)  # type: ignore[no-untyped-call]
    return loss


def gradients(model: Model, teacher: Model | None, inputs: Tensor, labels: Tensor) -> tuple[list[Tensor], float]:
    """Return the summed gradients and losses of one worker's share of a step."""
    parts = max(1, inputs.numel() // MICRO_TOKENS)
    sums = [torch.zeros_like(p) for p in model.parameters()]
    total = 0.0
    for some_inputs, some_labels in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
        loss = loss_of(model, teacher, some_inputs, some_labels)
        torch._foreach_add_(sums, torch.autograd.grad(loss, list(model.parameters())))
        total += loss.item()
    return sums, total


@torch.no_grad()
def heldout_loss(model: Model, stream: np.ndarray, length: int, windows: int) -> float:
    """Return the mean nats per token over evenly spaced windows."""
    starts = np.linspace(0, len(stream) - length - 1, windows).astype(int)
    losses = []
    for start in starts:
        ids = torch.from_numpy(stream[start : start + length + 1].astype(np.int64))
        losses.append(F.cross_entropy(model(ids[None, :-1])[0].float(), ids[1:]).item())
    return float(np.mean(losses))


class Trainer:
    """A resumable run of one role."""

    def __init__(self, role: str, work: Path, minutes: float) -> None:
        self.role, self.work, self.minutes = role, work, minutes
        self.recipe = RECIPES[role]
        self.checkpoint = work / f"{role}.pt"
        torch.manual_seed(SEED)
        self.model = Model(SHAPES[role])
        self.optimizers = make_optimizers(self.model, self.recipe)
        self.rates = [group["lr"] for group in self.groups()]
        self.step, elapsed = 0, 0.0
        if self.checkpoint.exists():
            elapsed = self.restore()
        self.started, self.saved = time.monotonic() - elapsed, time.monotonic()
        self.pool = ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,))
        self.stream, self.heldout = load_tokens(work, "train"), load_tokens(work, "heldout")
        self.teacher: Model | None = None
        if role == "draft":
            self.sampled = np.load(work / "sampled.npy")
            self.teacher = Model(SHAPES["target"]).requires_grad_(False)
            self.teacher.load_state_dict(torch.load(work / "target.pt")["model"])

    def groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def elapsed(self) -> float:
        """Return the seconds of training so far, over all resumptions."""
        return time.monotonic() - self.started

    def progress(self) -> float:
        """Return how far the run is, by tokens or by the clock."""
        by_tokens = self.step * self.recipe.step_tokens / self.recipe.tokens
        return max(by_tokens, self.elapsed() / (60 * self.minutes))

    def restore(self) -> float:
        """Load the checkpoint; return the seconds it took to reach."""
        state = torch.load(self.checkpoint)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = state["step"]
        return float(state["elapsed"])

    def save(self) -> None:
        """Write a checkpoint and move it into place."""
        held = heldout_loss(self.model, self.heldout, 512, 32)
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "tokens": self.step * self.recipe.step_tokens,
            "elapsed": self.elapsed(),
            "heldout": held,
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)
        self.saved = time.monotonic()
        print(f"saved at step {self.step}: held-out {held:.4f} nats/token", flush=True)

    def take_step(self, progress: float) -> float:
        """Train on one batch; return its loss in nats per token."""
        count = self.recipe.step_tokens // BLOCK
        teacher = self.teacher if progress >= DISTILL_FROM else None
        if teacher is not None and self.step % SAMPLED_EVERY == 0:
            length = SAMPLED_LENGTH
            blocks = step_blocks(self.sampled, self.step // SAMPLED_EVERY, count)
        else:
            length = next(length for until, length in STAGES if progress < until)
            blocks = step_blocks(self.stream, self.step, count)
        inputs = blocks[:, :-1].reshape(-1, length)
        labels = blocks[:, 1:].reshape(-1, length)
        shares = zip(inputs.chunk(WORKERS), labels.chunk(WORKERS), strict=True)
        results = list(self.pool.map(lambda s: gradients(self.model, teacher, *s), shares))
        sums = zip(*(gradient for gradient, _ in results), strict=True)
        for parameter, parts in zip(self.model.parameters(), sums, strict=True):
            parameter.grad = torch.stack(parts).sum(0) / inputs.numel()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        scale = learning_rate_scale(self.step, progress)
        for group, rate in zip(self.groups(), self.rates, strict=True):
            group["lr"] = rate * scale
        list(self.pool.map(lambda optimizer: optimizer.step(), self.optimizers))
        self.step += 1
        return sum(loss for _, loss in results) / inputs.numel()

    def run(self) -> None:
        """Train until the tokens or the minutes are used up."""
        parameters = sum(p.numel() for p in self.model.parameters())
        print(f"{self.role}: {parameters:,} parameters, {len(self.stream):,} corpus tokens")
        logged, losses = time.monotonic(), []
        while (progress := self.progress()) < 1:
            losses.append(self.take_step(progress))
            if self.step % LOG_EVERY == 0:
                now = time.monotonic()
                speed = len(losses) * self.recipe.step_tokens / (now - logged)
                tokens = self.step * self.recipe.step_tokens
                left = min((self.recipe.tokens - tokens) / speed, 60 * self.minutes - self.elapsed())
                print(
                    f"step {self.step} | {tokens / 1e6:.2f}M tokens | loss {np.mean(losses):.4f}"
                    f" | progress {progress:.3f} | {speed:.0f} tok/s"
                    f" | {self.elapsed() / 60:.1f} min, {left / 60:.1f} left",
                    flush=True,
                )
                logged, losses = now, []
            if time.monotonic() - self.saved > SAVE_EVERY_S:
                self.save()
        self.save()


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=sorted(RECIPES))
    parser.add_argument("--work", type=Path, required=True, help="folder of corpus and checkpoints")
    parser.add_argument("--minutes", type=float, required=True, help="the run's longest duration")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    Trainer(arguments.role, arguments.work, arguments.minutes).run()


if __name__ == "__main__":
    main()
