"""An assistant that agrees with a random target in part: it foresees the target's states."""

import json
from pathlib import Path

import torch
from heads import solve, texts_of, write_head
from safetensors.torch import load_file
from torch import Tensor


def write(path: Path, target: Path) -> None:
    """Write two layers that see all keys of a target without windows."""
    texts, hidden = texts_of(target)
    known, raw = load_file(target / "model.safetensors"), json.loads((target / "config.json").read_text())
    embedding, norm = known["model.embed_tokens.weight"].double(), known["model.norm.weight"]
    vocab, width = embedding.shape
    heads, size, inner = raw["num_attention_heads"], raw["head_dim"], 48
    shapes = {
        "self_attn.q_proj.weight": (heads * size, width),
        "self_attn.o_proj.weight": (width, heads * size),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    generator, tensors = torch.Generator().manual_seed(0), dict[str, Tensor]()
    for layer in ("model.layers.0.", "model.layers.1."):
        for name, shape in shapes.items():
            tensors[layer + name] = shape[-1] ** -0.5 * torch.randn(shape, generator=generator)
        for name in norms:  # what layers add is small
            tensors[f"{layer}{name}.weight"] = torch.full((width,), 0.05 if name.startswith("post") else 1.0)
        tensors[f"{layer}self_attn.q_norm.weight"] = torch.ones(size)
        tensors[f"{layer}layer_scalar"] = torch.ones(1)
    features = torch.cat([embedding[texts[:, 1:]], hidden[:, :-1].double()], -1).flatten(0, 1)
    wanted = (hidden[:, 1:].double() / norm.double()).flatten(0, 1)
    tensors["pre_projection.weight"] = solve(features, wanted).float()
    tensors["post_projection.weight"] = torch.eye(width)
    tensors["model.norm.weight"] = norm.float()
    tensors["model.embed_tokens.weight"] = known["lm_head.weight"].float()
    text = {
        "model_type": "gemma4_text",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "num_attention_heads": heads,
        "num_key_value_heads": raw["num_key_value_heads"],
        "global_head_dim": size,
    }
    config = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": width,
        "text_config": text,
    }
    write_head(path, config, tensors)
