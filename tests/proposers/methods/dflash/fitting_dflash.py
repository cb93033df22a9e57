"""A DFlash head that agrees with a random target in part: its output layer is fitted to what it makes of texts."""

from pathlib import Path

import torch
from blocks import block_config, fit_output, near_sighted, write_head


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target. Some tokens are beyond the head."""
    ids = [token for token in range(257) if token % 9]
    config = block_config(draft_vocab_size=len(ids))
    tensors = near_sighted(config)
    tensors["lm_head.weight"] = fit_output(config, tensors, path, target, ids)
    tensors["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
    write_head(path, config, tensors)
