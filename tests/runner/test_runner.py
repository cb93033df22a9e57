"""A runner's logits are those of the rows that were asked for, in their order."""

from pathlib import Path

import pytest
import torch
from checkpoints import write_llama

from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.runner import ModelRunner


@pytest.mark.parametrize("rows", [(0, 1, 2), (2, 0, 1), (1,), (2, 1), (1, 1, 1)])
def test_rows_in_any_order(tmp_path: Path, rows: tuple[int, ...]) -> None:
    kernels = select_kernels()
    model = load_model(describe_model(str(write_llama(tmp_path))), torch.float32, 64, kernels)
    hidden = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ModelRunner(model, kernels, 4, 4).logits(hidden, rows), model.logits(hidden)[list(rows)])
