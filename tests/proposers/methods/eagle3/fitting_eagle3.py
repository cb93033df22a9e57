"""An EAGLE-3 head that agrees with a random target in part."""

from collections.abc import Sequence
from pathlib import Path

import torch
from eagles import fit_eagle3
from heads import texts_of
from torch import Tensor

from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.batch import Stretch, flatten
from parlay.runner.runner import ModelRunner


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    texts, _ = texts_of(target)
    kernels = select_kernels()
    model = load_model(describe_model(str(target)), torch.float32, texts.shape[1], kernels)

    def states(layers: Sequence[int]) -> Tensor:
        runner = ModelRunner(model, kernels, texts.shape[1], 1)
        runner.tap(tuple(layers))
        found = []
        for text in texts.tolist():
            runner.forward(flatten([Stretch(text, 0, range(len(text)))], 1))
            found.append(torch.cat(list(runner.tapped), 1))
        return torch.stack(found)

    fit_eagle3(path, target, texts, states)
