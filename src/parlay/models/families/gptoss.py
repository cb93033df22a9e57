"""gpt-oss 20b and 120b (OpenAI 2025, arXiv 2508.10925).

Attention with learnt sinks and a window in every other layer; experts with biases and a clamped SwiGLU.
"""

from dataclasses import replace

from parlay.checkpoints.pieces import Piece
from parlay.models.config import ModelConfig
from parlay.models.style import Experts, Style

_NAMES = {f"mlp.gate.{kind}": f"mlp.router.{kind}" for kind in ("weight", "bias")}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0)
    experts = Experts(
        count=config.count("num_local_experts", config.raw.get("num_experts", 128)),
        top_k=config.count("num_experts_per_tok", config.raw.get("experts_per_token", 4)),
        width=config.intermediate_size,
        sparse=(True,) * config.num_layers,
        biases=True,
    )
    style = Style(
        activation="clamped_swiglu",
        **config.attention_biases(default=True),
        windows=config.windows(lambda layer: layer % 2 == 0, default=128),
        sinks=(True,) * config.num_layers,
        experts=experts,
    )
    return replace(config, style=style, renamed=config.in_layers(_NAMES) | config.stacked(_stacks(experts.count)))


def _stacks(count: int) -> dict[str, Piece]:
    """Return where experts' tensors are: inputs come before outputs, and gate's outputs take turns with up's."""
    outputs = {"gate": (0, None, 2), "up": (1, None, 2), "down": (None, None, None)}
    stacks = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}
    found = {}
    for name, which in outputs.items():
        stack = f"mlp.experts.{stacks[name]}"
        found[f"mlp.experts.{{}}.{name}_proj.weight"] = Piece(stack, 0, count, which, turned=True)
        found[f"mlp.experts.{{}}.{name}_proj.bias"] = Piece(f"{stack}_bias", 0, count, which)
    return found
