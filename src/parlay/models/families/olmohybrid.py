"""OLMo Hybrid (OLMo team 2026), such as 7B: gated delta nets, and OLMo 2's attention in every fourth layer.

Writes may turn a state over. No query or key turns with its position, unless the config has a base. Layers with
attention have norms behind their parts alone, the others before.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.delta_net import DeltaNets
from parlay.models.families import olmo2

_NAMES = {
    "input_layernorm.weight": "attention_layer_norm.weight",
    "post_attention_layernorm.weight": "feedforward_layer_norm.weight",
    **{
        f"linear_attn.in_proj_{x}.weight": f"linear_attn.{own}_proj.weight"
        for x, own in zip("zba", "gba", strict=True)
    },
    "linear_attn.norm.weight": "linear_attn.o_norm.weight",
    "linear_attn.out_proj.weight": "linear_attn.o_proj.weight",
}


def describe(config: ModelConfig) -> ModelConfig:
    heads = config.count("linear_num_key_heads", config.num_heads)
    key = config.count("linear_key_head_dim", 3 * config.hidden_size // (4 * heads))
    usual = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(config.num_layers)]
    kinds = config.kinds("layer_types", ("linear_attention", "full_attention"), usual)
    nets = DeltaNets(
        layers=tuple(kind == "linear_attention" for kind in kinds),
        kernel_size=config.count("linear_conv_kernel_dim", 4),
        key_heads=heads,
        value_heads=config.count("linear_num_value_heads", config.num_heads),
        key=key,
        value=config.count("linear_value_head_dim", 2 * key),
        separate=True,
        write_scale=2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0,
        eps=1e-5,  # whatever the config says
    )
    nets.check(config)
    rotary = config.within("rope_parameters").raw.get("rope_theta") or config.raw.get("rope_theta")
    style = replace(
        olmo2.describe(config).style,
        recurrent=nets,
        recurrent_pre_norms=True,
        nope=() if rotary else (True,) * config.num_layers,
    )
    return replace(config, style=style, renamed=config.in_layers(_NAMES))
