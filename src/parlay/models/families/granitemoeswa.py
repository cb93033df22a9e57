"""Granite with windows and experts (Granite team 2026), such as granite-swash-3b-a600m: see `graniteswa`."""

from dataclasses import replace

from parlay.checkpoints.pieces import Piece
from parlay.models.config import ModelConfig
from parlay.models.families import granitemoe
from parlay.models.families.graniteswa import with_windows


def describe(config: ModelConfig) -> ModelConfig:
    described = with_windows(granitemoe.describe(config))
    renamed = dict(described.renamed)
    for own, name in described.renamed.items():  # saved by other names than those of a Granite with experts
        if isinstance(name, Piece):
            part = "down_proj" if own.endswith("down_proj.weight") else "gate_up_proj"
            prefix = name.name.partition("block_sparse_moe")[0]
            renamed[own] = replace(name, name=f"{prefix}block_sparse_moe.experts.{part}")
        elif name.endswith("router.layer.weight"):
            renamed[own] = name.replace("router.layer.weight", "router.weight")
    return replace(described, style=replace(described.style, fused_mlp=True), renamed=renamed)
