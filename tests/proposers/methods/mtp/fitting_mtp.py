"""A layer for further tokens that agrees with a random target in part: it foresees the target's states."""

import json
from pathlib import Path

import torch
from eagles import eagle_config, layer_shapes
from heads import solve, texts_of, write_head
from safetensors.torch import load_file
from torch import Tensor


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def write(path: Path, target: Path) -> None:
    """Write files that have the layer alone."""
    texts, hidden = texts_of(target)
    known = load_file(target / "model.safetensors")
    embedding, norm = known["model.embed_tokens.weight"].double(), known["model.norm.weight"]
    width, raw = embedding.shape[1], json.loads((target / "config.json").read_text())
    raw = {"head_dim": width // raw["num_attention_heads"], **raw}
    generator, tensors = torch.Generator().manual_seed(0), dict[str, Tensor]()
    for name, shape in layer_shapes(raw, wide=False).items():
        small = 0.05 if "o_proj" in name or "down_proj" in name else 1.0
        tensors[f"mtp.layers.0.{name}"] = small * shape[-1] ** -0.5 * torch.randn(shape, generator=generator)
    inner = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm")
    for name in (*inner, "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = torch.ones(width)
    tensors["mtp.norm.weight"] = norm.float()
    features = torch.cat([_normed(embedding[texts[:, 1:]]), _normed(hidden[:, :-1].double())], -1).flatten(0, 1)
    wanted = (hidden[:, 1:].double() / norm.double()).flatten(0, 1)
    tensors["mtp.fc.weight"] = solve(features, wanted).float()
    write_head(path, eagle_config(), tensors)
