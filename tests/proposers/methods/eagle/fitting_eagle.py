"""An EAGLE head that agrees with a random target in part: it foresees the target's states."""

from pathlib import Path

import torch
from eagles import eagle_config, random_eagle
from heads import solve, texts_of, write_head
from safetensors.torch import load_file


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    texts, hidden = texts_of(target)
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"].double()
    config = eagle_config(vocab_size=len(embedding), hidden_size=embedding.shape[1])
    tensors = random_eagle(config)
    for name in ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"):
        tensors[name] *= 0.05
    features = torch.cat([embedding[texts[:, 1:]], hidden[:, :-1].double()], -1).flatten(0, 1)
    features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], 1)
    joined = solve(features, hidden[:, 1:].double().flatten(0, 1)).float()
    tensors["fc.weight"], tensors["fc.bias"] = joined[:, :-1], joined[:, -1]
    write_head(path, config, tensors)
