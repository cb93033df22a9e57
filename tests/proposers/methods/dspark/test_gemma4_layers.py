"""DSpark heads whose layers are Gemma 4's, against transformers' own parts of these."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, assert_same, run
from blocks import SparkTwin, markov_tensors, twin_for, write_head
from checkpoints import write_llama
from eagles import Tensors, assert_drafts
from families import write_family
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from watching import Watch, asks

from parlay import LLM, ModelError, SamplingParams

WIDTH, INNER, VOCAB, RANK = 64, 80, 257, 8
ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
# What their authors write: the config of the target's text model, and a few keys.
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4DSparkModel"],
    "model_type": "gemma4_text",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "attention_k_eq_v": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["full_attention"] * 2,
    "rope_parameters": ROPE,
    "num_kv_shared_layers": 1,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "rms_norm_eps": 1e-6,
    "mask_token_id": 255,
    "target_layer_ids": [0, 1, 2],
    "block_size": 7,
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
}


def random_head(alike: bool, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """Return a head; `alike` says whether values are what keys are made of."""
    config = CONFIG | {"attention_k_eq_v": alike} | changes
    width, vocab = config["hidden_size"], config["vocab_size"]
    columns = 32 * (1 if alike else 2)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (width, 3 * width)}
    shapes |= dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), (vocab, width))
    shapes |= dict.fromkeys(("hidden_norm.weight", "norm.weight"), (width,))
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    for i in range(2):
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj.weight": (4 * 32, width),
            **{f"self_attn.{x}_proj.weight": (columns, width) for x in ("k" if alike else "kv")},
            "self_attn.o_proj.weight": (width, 4 * 32),
            **{f"self_attn.{x}_norm.weight": (32,) for x in "qk"},
            **{f"mlp.{x}_proj.weight": (INNER, width) for x in ("gate", "up")},
            "mlp.down_proj.weight": (width, INNER),
            **{f"{name}_layernorm.weight": (width,) for name in norms},
            "layer_scalar": (1,),
        }
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    generator, tensors = torch.Generator().manual_seed(3), dict[str, Tensor]()
    for name, shape in shapes.items():
        draw = torch.randn(shape, generator=generator)
        tensors[name] = 1.5 * shape[-1] ** -0.5 * draw if len(shape) > 1 else 1 + 0.2 * draw
    return config, {**tensors, **markov_tensors("vanilla", width, RANK, vocab, vocab)}


class GemmaTwin(SparkTwin):
    """Transformers' parts, put together as in `Gemma4DSparkModel` of deepseek-ai/DeepSpec."""

    def __init__(self, path: Path, embedding: Tensor, output: Tensor) -> None:
        from transformers.models.gemma4 import modeling_gemma4 as parts
        from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

        super().__init__(path, embedding, output)
        given = json.loads((path / "config.json").read_text())
        self.parts, self.config = parts, Gemma4TextConfig(**given | {"num_kv_shared_layers": 0})
        self.raw["input_embedding_scale"] = self.config.hidden_size**0.5
        self.turns = parts.Gemma4TextRotaryEmbedding(self.config)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Return a norm of rows or heads; without a name one that has no weight."""
        norm = self.parts.Gemma4RMSNorm(x.shape[-1], eps=self.eps, with_scale=bool(name))
        if name:
            norm.weight.data = self.tensors[f"{name}.weight"].float()
        return norm(x.float()).detach().double()  # type: ignore[no-any-return]

    def _layer(self, i: int, rows: Tensor, context: Tensor) -> Tensor:
        part = f"layers.{i}."
        attended = self._attention(i, self.norm(f"{part}input_layernorm", rows), context)
        rows = rows + self.norm(f"{part}post_attention_layernorm", attended)
        mlp = self.parts.Gemma4TextMLP(self.config, 0).double()
        names = [f"{x}_proj.weight" for x in ("gate", "up", "down")]
        mlp.load_state_dict({name: self.tensors[f"{part}mlp.{name}"] for name in names})
        made = mlp(self.norm(f"{part}pre_feedforward_layernorm", rows)).detach()
        rows = rows + self.norm(f"{part}post_feedforward_layernorm", made)
        return rows * self.tensors[f"{part}layer_scalar"]

    def _attention(self, layer: int, x: Tensor, context: Tensor) -> Tensor:
        name, both, width = f"layers.{layer}.self_attn.", torch.cat([context, x]), self.raw["global_head_dim"]
        places = torch.arange(len(both))[None]
        cos, sin = (y.double() for y in self.turns(both[None].float(), places, layer_type="full_attention"))

        def heads(letter: str, rows: Tensor) -> Tensor:
            return linear(rows, self.tensors[f"{name}{letter}_proj.weight"]).view(1, len(rows), -1, width)

        def turned(letter: str, rows: Tensor) -> Tensor:
            normed, last = self.norm(f"{name}{letter}_norm", heads(letter, rows)), len(rows)
            found = self.parts.apply_rotary_pos_emb(normed, cos[:, -last:], sin[:, -last:], unsqueeze_dim=2)
            return found.transpose(1, 2)  # type: ignore[no-any-return]

        value = self.norm("", heads("k" if self.raw["attention_k_eq_v"] else "v", both)).transpose(1, 2)
        mixed = scaled_dot_product_attention(turned("q", x), turned("k", both), value, scale=1.0, enable_gqa=True)
        return linear(mixed.transpose(1, 2).reshape(len(x), -1), self.tensors[f"{name}o_proj.weight"])


def serve(target: Path, head: Path | None) -> LLM:
    spec = head and {"model": str(head), "lengths": "fixed", "tree": "off"}
    return LLM(str(target), dtype="float32", max_model_len=128, speculative_config=spec)


@pytest.mark.parametrize("alike", [True, False], ids=["values of keys", "values apart"])
def test_drafts_are_right(tmp_path: Path, alike: bool) -> None:
    target, head = write_llama(tmp_path / "target"), write_head(tmp_path / "head", *random_head(alike))
    llm, watch = serve(target, head), Watch()
    answers = run(llm, asks(max_tokens=10), watch)
    assert_drafts(llm, twin_for(llm, head, GemmaTwin), watch.drafts)
    assert_same(answers, run(serve(target, None), asks(max_tokens=10)))
    assert max(len(noted.draft) for noted in watch.drafts.values()) == 7


def test_a_target_of_the_family(tmp_path: Path) -> None:
    """Its tokens are the same; the name in the head's config tells the method."""
    target = write_family(tmp_path / "target", "gemma4")
    config = json.loads((target / "config.json").read_text())
    sizes = {key: config[key] for key in ("hidden_size", "vocab_size")}
    head = write_head(tmp_path / "head", *random_head(True, **sizes))
    given = SamplingParams(temperature=0.7, seed=1, max_tokens=16, logprobs=1, ignore_eos=True)
    some = [Ask(tuple(range(5, 5 + length)), given) for length in (3, 20, 33)]
    llm = serve(target, head)
    assert "dspark" in llm.engine.methods
    found = run(llm, some)
    assert_same(found, run(serve(target, None), some))
    assert sum(one.metrics.drafted for one in found) > 20


def test_other_layers_are_refused(tmp_path: Path) -> None:
    config, tensors = random_head(True, layer_types=["full_attention", "sliding_attention"], sliding_window=64)
    head = write_head(tmp_path / "head", config, tensors)
    with pytest.raises(ModelError, match="layers of several kinds"):
        serve(write_llama(tmp_path / "target"), head)
