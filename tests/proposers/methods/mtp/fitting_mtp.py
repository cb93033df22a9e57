"""Layers for further tokens that agree with a random target in part: they foresee the target's states."""

import json
from functools import partial
from itertools import product
from pathlib import Path

import torch
from eagles import eagle_config, layer_shapes
from heads import solve, texts_of, write_head
from safetensors.torch import load_file
from torch import Tensor


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def write(path: Path, target: Path, layers: int = 1) -> None:
    """Write files that have these layers alone, which share what is around them."""
    texts, hidden = texts_of(target)
    known = load_file(target / "model.safetensors")
    embedding, norm = known["model.embed_tokens.weight"].double(), known["model.norm.weight"]
    width, raw = embedding.shape[1], json.loads((target / "config.json").read_text())
    raw = {"head_dim": width // raw["num_attention_heads"], **raw}
    generator, tensors = torch.Generator().manual_seed(0), dict[str, Tensor]()
    for place, (name, shape) in product(range(layers), layer_shapes(raw, wide=False).items()):
        small = 0.05 if "o_proj" in name or "down_proj" in name else 1.0
        tensors[f"mtp.layers.{place}.{name}"] = small * shape[-1] ** -0.5 * torch.randn(shape, generator=generator)
    inner = [f"layers.{i}.{name}_layernorm" for i, name in product(range(layers), ("input", "post_attention"))]
    for name in (*inner, "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = torch.ones(width)
    tensors["mtp.norm.weight"] = norm.float()
    features = torch.cat([_normed(embedding[texts[:, 1:]]), _normed(hidden[:, :-1].double())], -1).flatten(0, 1)
    wanted = (hidden[:, 1:].double() / norm.double()).flatten(0, 1)
    tensors["mtp.fc.weight"] = solve(features, wanted).float()
    write_head(path, eagle_config(), tensors)


VARIANTS = {"of-three-layers": partial(write, layers=3)}
