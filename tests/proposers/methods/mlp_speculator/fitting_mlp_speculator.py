"""An MLP speculator that agrees with a random target in part."""

import json
from pathlib import Path

from heads import GUESSES, fit, mlp_config, mlp_states, random_mlp, windows_of, write_head


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    hidden, follow = windows_of(target)
    vocab = json.loads((target / "config.json").read_text())["vocab_size"]
    config = mlp_config(vocab_size=vocab, emb_dim=hidden.shape[1], inner_dim=96, n_predict=GUESSES, scale_input=True)
    tensors = random_mlp(config)
    states = mlp_states(config, tensors, hidden, list(follow[:, :GUESSES].T))
    for i, state in enumerate(states):
        tensors[f"speculator.head.{i}.weight"] = fit(state, follow[:, i + 1], vocab)
    write_head(path, config, tensors)
