"""Block drafters in GGUF files: the same drafts as from the directories that they were made of."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from asking import run
from blocks import block_config, markov_tensors, random_block, walk_tensors, write_head
from gguf import GGUFWriter
from gguf_files import add_keys, add_raw, finish, to_blocks
from heads import serve_head
from watching import Watch, asks

from parlay import LLM, ModelError
from parlay.checkpoints.detect import detect

# llama.cpp's names, by its `llama-arch.cpp`.
OUTER = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}
INNER = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.attention_sink_bias": "attn_sinks.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}


def write_file(
    path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], kind: str = "F32", **metadata: Any
) -> Path:
    """Write a head as llama.cpp's converter does, matrices stored in a kind of blocks."""
    inner, writer = config["dflash_config"], GGUFWriter(path, "dflash")
    keys: dict[str, Any] = {
        "dflash.context_length": 512,
        "dflash.embedding_length": config["hidden_size"],
        "dflash.block_count": config["num_hidden_layers"],
        "dflash.feed_forward_length": config["intermediate_size"],
        "dflash.attention.head_count": config["num_attention_heads"],
        "dflash.attention.head_count_kv": config["num_key_value_heads"],
        "dflash.attention.key_length": config["head_dim"],
        "dflash.attention.value_length": config["head_dim"],
        "dflash.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "dflash.rope.freq_base": 10000.0,
        "dflash.block_size": config["block_size"],
        "dflash.target_layers": [i + 1 for i in inner["target_layer_ids"]],
        "dflash.vocab_size": 257,
        "tokenizer.ggml.mask_token_id": inner["mask_token_id"],
        **{f"dflash.{key}": inner[key] for key in inner if key.startswith(("conv_", "selector_"))},
    }
    add_keys(writer, keys, metadata)
    for name, tensor in tensors.items():
        if name == "t2d":
            continue
        if name == "d2t":  # converters write the ids themselves
            ids = (tensor + torch.arange(len(tensor))).numpy()
            writer.add_tensor("d2t", ids, raw_dtype=gguf.GGMLQuantizationType.I64)
            continue
        layer = name.split(".")[1] if name.startswith("layers.") else ""
        own = f"blk.{layer}.{INNER[name.removeprefix(f'layers.{layer}.')]}" if layer else OUTER[name]
        stored = kind if tensor.dim() == 2 else "F32"
        add_raw(writer, own, to_blocks(tensor, stored), stored)
    finish(writer)
    return path


def plain() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a DFlash head with a reduced vocabulary and sinks."""
    ids = torch.arange(0, 257, 2)
    config = block_config(
        draft_vocab_size=len(ids),
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=20,
        block_size=6,
    )
    tensors = random_block(config)
    tensors["lm_head.weight"] = torch.randn(len(ids), 64, generator=torch.Generator().manual_seed(1))
    tensors["d2t"] = ids - torch.arange(len(ids))
    for i in range(2):
        tensors[f"layers.{i}.self_attn.attention_sink_bias"] = torch.arange(4) / 4
    return config, tensors


def scaled() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    config = block_config(block_size=6, is_causal=True, partial_rotary_factor=0.5)
    config["dflash_config"] |= {"attention_value_scale": 0.5, "input_embedding_scale": 2.0, "output_multiplier": 0.25}
    config["dflash_config"] |= {"final_logit_softcapping": 8.0}
    tensors = random_block(config)
    tensors["embed_tokens.weight"] = torch.randn(257, 64, generator=torch.Generator().manual_seed(2))
    return config, tensors


def spark() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    config = block_config(architectures=["Qwen3DSparkModel"], block_size=6, markov_rank=8, sample_from_anchor=False)
    return config, {**random_block(config), **markov_tensors("vanilla", 64, 8, 257, 257)}


def walk() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    config = block_config(architectures=["DFlash2DraftModel"], block_size=6)
    config["dflash_config"] |= {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 5}
    return config, {**random_block(config), **walk_tensors(64, 257)}


HEADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dflash": (
        plain,
        {
            "dflash__attention__sliding_window": 20,
            "dflash__attention__sliding_window_pattern": [True, False],
        },
    ),
    "dflash, scaled": (
        scaled,
        {
            "dflash__attention__causal": True,
            "dflash__attention__value_scale": 0.5,
            "dflash__embedding_scale": 2.0,
            "dflash__logit_scale": 0.25,
            "dflash__final_logit_softcapping": 8.0,
            "dflash__rope__dimension_count": 8,
        },
    ),
    "dspark": (spark, {"dflash__sample_from_anchor": False, "dflash__has_confidence_head": True}),
    "dflash2": (walk, {}),
}


def drafts(target: Path, head: Path) -> list[Any]:
    llm, watch = serve_head(target, head), Watch()
    run(llm, asks(max_tokens=6)[:4], watch)
    return [(known, noted.draft.tokens, noted.draft.probs) for known, noted in watch.drafts.items()]


@pytest.mark.parametrize("name", HEADS)
def test_the_same_drafts(tmp_path: Path, target: Path, name: str) -> None:
    make, metadata = HEADS[name]
    config, tensors = make()
    file = write_file(tmp_path / "head.gguf", config, tensors, **metadata)
    assert detect(file) == name.split(",")[0]
    found = drafts(target, file)
    assert found
    assert found == drafts(target, write_head(tmp_path / "head", config, tensors))


def test_blocks_of_small_integers(tmp_path: Path, target: Path) -> None:
    """Matrices stay as they are stored."""
    config = block_config(block_size=6, intermediate_size=96)
    tensors = random_block(config)
    found = drafts(target, write_file(tmp_path / "head.gguf", config, tensors, kind="Q8_0"))
    exact = drafts(target, write_head(tmp_path / "head", config, tensors))
    same = [ours[1] == theirs[1] for ours, theirs in zip(found, exact, strict=True)]
    assert any(same)
    assert [one[2] for one in found] != [one[2] for one in exact]


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"dflash__target_layers": [1, 2, 9]}, "reads its target after 9 layers, but that has only 3"),
        ({"dflash__block_size": 70}, "block_size=70 is not supported"),
        ({"dflash__target_layers": None}, r"head\.gguf: target_layer_ids must list numbers of layers"),
        ({"tokenizer__ggml__mask_token_id": None}, "tokenizer.ggml.mask_token_id"),
        ({"dflash__hidden_activation": "gelu"}, "hidden_act='gelu' is not supported"),
    ],
)
def test_what_is_refused(tmp_path: Path, target: Path, metadata: dict[str, Any], told: str) -> None:
    config, tensors = spark()
    tensors = {name: tensor for name, tensor in tensors.items() if "head" not in name}
    file = write_file(tmp_path / "head.gguf", config, tensors, **metadata)
    with pytest.raises(ModelError, match=told):
        LLM(str(target), speculative_config={"method": "dflash", "model": str(file)})


def test_a_file_that_is_none(tmp_path: Path, target: Path) -> None:
    file = write_file(tmp_path / "head.gguf", *walk())
    with pytest.raises(ModelError, match="is a draft head for the method 'dflash2', no model by itself"):
        LLM(str(file))
