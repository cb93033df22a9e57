"""Models run over one text in pieces, which must not matter."""

from collections.abc import Callable
from pathlib import Path

import torch
from families import write_family
from torch import Tensor

from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.batch import Stretch, flatten
from parlay.runner.runner import ModelRunner

_BLOCKS = tuple(range(7, -1, -1))
_BLOCK_SIZE = 16


def writer(make_folder: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return what gives checkpoints by name, each written once."""
    written: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in written:
            written[name] = write_family(make_folder(name), name)
        return written[name]

    return write


def make_runner(
    path: Path, length: int, dtype: torch.dtype = torch.float32, kernels: str | None = None
) -> ModelRunner:
    chosen = select_kernels(force=kernels)
    model = load_model(describe_model(str(path)), dtype, length, chosen)
    return ModelRunner(model, chosen, len(_BLOCKS), _BLOCK_SIZE)


def logits_in_pieces(runner: ModelRunner, tokens: list[int], cuts: list[int]) -> Tensor:
    """Return the logits of all rows, computed in pieces that end at `cuts`."""
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        hidden = runner.forward(flatten([Stretch(tokens[start:end], start, _BLOCKS)], _BLOCK_SIZE))
        parts.append(runner.logits(hidden, range(end - start)).clone())
    return torch.cat(parts)


def random_tokens(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 257, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
