"""Which tensors a GGUF file of a model has, by the decoder's names, and what each is made of."""

from dataclasses import replace

import torch
from torch import Tensor

from parlay.checkpoints.gguf.family import Family
from parlay.models.config import ModelConfig
from parlay.models.mtp import MTPLayer
from parlay.models.select import folded, weight_shapes
from parlay.models.tensor_origins import TensorOrigin

_NEXT = "nextn_predict_layers"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def has_mtp(family: Family) -> bool:
    """Return whether files of a family can have an MTP layer."""
    return _NEXT in family.options


def as_gguf_config(config: ModelConfig, family: Family) -> ModelConfig:
    """Return a model's config as it is read out of its file."""
    whole, factors = folded(config)
    style, experts = whole.style, whole.style.experts
    recurrent = None if style.recurrent is None else style.recurrent.gguf_layers(family.fixed)
    fused = style.fused_mlp and "mlp.gate_up_proj" in family.inner.values()
    apart = _factor(factors, _HEAD) != _factor(factors, _EMBEDDING)
    width = whole.intermediate_size
    if family.single_part_layers and experts is not None:  # files have one width, of networks or of experts
        width = experts.width
    return replace(
        whole,
        style=replace(style, recurrent=recurrent, fused_mlp=fused),
        tie_embeddings=whole.tie_embeddings and not apart,
        intermediate_size=width,
        renamed={},
    )


def origins(config: ModelConfig, family: Family) -> dict[str, TensorOrigin]:
    """Return the tensors of a model's file."""
    filed, own, (_, factors) = as_gguf_config(config, family), weight_shapes(config), folded(config)
    recurrent = config.style.recurrent
    scanned = recurrent.gguf_origins(family.fixed) if recurrent is not None else {}
    found = {}
    for name, shape in weight_shapes(filed).items():
        layer, inner = _parted(name)
        if inner in family.numbers:  # which is no tensor in files
            continue
        scans = recurrent is not None and layer != "" and recurrent.layers[int(layer.split(".")[2])]
        if scans and inner in scanned:
            found[name] = scanned[inner].within(layer)
        elif name in own:
            outputs = None if scans else _in_pairs(config, family, inner, shape[0])
            found[name] = TensorOrigin(name=name, outputs=outputs, factor=_factor(factors, name))
        elif name == _HEAD:
            found[name] = TensorOrigin(name=_EMBEDDING, factor=_factor(factors, name))
        else:  # of a network whose gate and up are one tensor
            fused = name.replace(".gate_proj.", ".gate_up_proj.").replace(".up_proj.", ".gate_up_proj.")
            begin = shape[0] * (".up_proj." in name)
            found[name] = TensorOrigin(name=fused, outputs=torch.arange(begin, begin + shape[0]))
    return found


def mtp_origins(number: int, layer: MTPLayer, family: Family) -> dict[str, TensorOrigin]:
    """Return the tensors of an MTP layer in a model's file, which has a number behind the model's."""
    names, prefix = layer.names, f"model.layers.{number}."
    found = {
        name.replace("model.layers.0.", prefix, 1): replace(
            origin, name=origin.name.replace("model.layers.0.", names.layer, 1)
        )
        for name, origin in origins(layer.config, family).items()
        if name.startswith("model.layers.0.")
    }
    extra = {
        "eh_proj": names.join,
        "enorm": names.token_norm,
        "hnorm": names.state_norm,
        "shared_head_norm": names.norm,
    }
    extra |= {"shared_head_head": names.head} if names.head else {}
    return found | {f"{prefix}nextn.{part}.weight": TensorOrigin(name=own) for part, own in extra.items()}


def _parted(name: str) -> tuple[str, str]:
    """Return what a tensor's name begins with, up to its layer, and the rest."""
    if not name.startswith("model.layers."):
        return "", name
    *layer, inner = name.split(".", 3)
    return ".".join(layer) + ".", inner


def _factor(factors: dict[str, float], name: str) -> float:
    return next((factor for ending, factor in factors.items() if name.endswith(ending)), 1.0)


def _in_pairs(config: ModelConfig, family: Family, inner: str, rows: int) -> Tensor | None:
    """Return the order of rows in which the two of a rotary pair are neighbours, where files have that."""
    projections = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    heads = next((count for part, count in projections.items() if f".{part}." in inner), None)
    if not family.interleaved or heads is None:
        return None
    return torch.arange(rows).view(heads, 2, -1).transpose(1, 2).reshape(-1)
