"""Granite 4 without recurrent layers or experts, such as 4.0 micro and 1b: a Granite with other names.

The class of transformers, GraniteMoeHybrid, has more; checkpoints of this kind use only its attention and its shared
feed-forward network.
"""

from dataclasses import replace

from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.families import granite

_NAMES = {
    "mlp.gate_up_proj.weight": "shared_mlp.input_linear.weight",
    "mlp.down_proj.weight": "shared_mlp.output_linear.weight",
}


def describe(config: ModelConfig) -> ModelConfig:
    """Return the config with the family's style.

    Raises:
        ModelError: it has recurrent layers or experts, or an option that is not served.
    """
    kinds = config.raw.get("layer_types") or config.raw.get("layers_block_type")
    if not isinstance(kinds, list) or set(kinds) - {"attention", "full_attention"}:
        raise ModelError(f"{config.path}: Granite 4 with recurrent layers is not served; its dense models are")
    config.only(num_local_experts=0, position_embedding_type="rope")
    described = granite.describe(config)
    return replace(
        described,
        style=replace(described.style, fused_mlp=True),
        intermediate_size=config.count("shared_intermediate_size", 1024),
        renamed=config.in_layers(_NAMES),
    )
