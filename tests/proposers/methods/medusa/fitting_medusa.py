"""Medusa's heads that agree with a random target in part."""

import json
from pathlib import Path

from heads import GUESSES, fit, medusa_states, random_medusa, windows_of, write_medusa


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    hidden, follow = windows_of(target)
    vocab = json.loads((target / "config.json").read_text())["vocab_size"]
    tensors = random_medusa(hidden=hidden.shape[1], heads=GUESSES, outputs=False)
    for i, state in enumerate(medusa_states(tensors, hidden, GUESSES, 1)):
        tensors[f"{i}.1.weight"] = fit(state, follow[:, i + 1], vocab)
    write_medusa(path, tensors)
