"""GGUF files of models with recurrent layers, and what is refused of such models."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, run
from families import write_family
from gguf import GGUFWriter
from gguf_families import dequantised
from gguf_files import (
    add_keys,
    add_raw,
    assert_same_file,
    finish,
    interleave,
    to_blocks,
    tokenizer_keys,
    write_dequantised,
)
from mtp_layers import write_mtp
from pieces import logits_of, random_tokens
from safetensors.torch import load_file
from torch import Tensor

from parlay import LLM, ModelError, SamplingParams
from parlay.models.export.gguf import export
from parlay.models.select import describe_model, mtp_layers
from parlay.proposers.methods.mtp.training import Options, Trainee
from parlay.train.options import TrainOptions
from parlay.train.save import save_head
from parlay.train.teacher import Teacher

# Files' names of a layer's tensors, by endings of Hugging Face's, the longest first.
BLOCK = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
NAMES: dict[str, dict[str, str]] = {
    "qwen35": BLOCK
    | {
        "post_attention_layernorm.weight": "post_attention_norm.weight",
        "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
        "linear_attn.in_proj_z.weight": "attn_gate.weight",
        "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
        "linear_attn.in_proj_b.weight": "ssm_beta.weight",
        "linear_attn.conv1d.weight": "ssm_conv1d.weight",
        "linear_attn.A_log": "ssm_a",
        "linear_attn.dt_bias": "ssm_dt.bias",
        "linear_attn.norm.weight": "ssm_norm.weight",
        "linear_attn.out_proj.weight": "ssm_out.weight",
    },
    "granitehybrid": BLOCK
    | {
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "mamba.in_proj.weight": "ssm_in.weight",
        "mamba.conv1d.weight": "ssm_conv1d.weight",
        "mamba.conv1d.bias": "ssm_conv1d.bias",
        "mamba.A_log": "ssm_a",
        "mamba.D": "ssm_d",
        "mamba.dt_bias": "ssm_dt.bias",
        "mamba.norm.weight": "ssm_norm.weight",
        "mamba.out_proj.weight": "ssm_out.weight",
        "shared_mlp.output_linear.weight": "ffn_down.weight",
    },
    "lfm2": {
        "operator_norm.weight": "attn_norm.weight",
        "ffn_norm.weight": "ffn_norm.weight",
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.k_proj.weight": "attn_k.weight",
        "self_attn.v_proj.weight": "attn_v.weight",
        "self_attn.out_proj.weight": "attn_output.weight",
        "self_attn.q_layernorm.weight": "attn_q_norm.weight",
        "self_attn.k_layernorm.weight": "attn_k_norm.weight",
        "conv.conv.weight": "shortconv.conv.weight",
        "conv.in_proj.weight": "shortconv.in_proj.weight",
        "conv.out_proj.weight": "shortconv.out_proj.weight",
        "feed_forward.w1.weight": "ffn_gate.weight",
        "feed_forward.w3.weight": "ffn_up.weight",
        "feed_forward.w2.weight": "ffn_down.weight",
    },
}
NAMES["falcon-h1"] = NAMES["granitehybrid"] | {
    "pre_ff_layernorm.weight": "ffn_norm",  # without an ending, as in the files that there are
    **{f"feed_forward.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
}
NAMES["kimi-linear"] = {
    **BLOCK,
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{f"block_sparse_moe.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
    **{f"self_attn.{x}_conv1d.weight": f"ssm_conv1d_{x}.weight" for x in "qkv"},
    **{f"self_attn.{x}_proj.weight": f"ssm_{x}.weight" for x in ("f_a", "f_b", "g_a", "g_b")},
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
}
NEXT = {
    "mtp.fc.weight": "eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
    "mtp.norm.weight": "shared_head_norm.weight",
}
EVEN = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}


def keys_of(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    recurrent = [kind not in ("full_attention", "attention") for kind in config.get("layer_types", ())]
    by_layer = [0 if own else config["num_key_value_heads"] for own in recurrent]
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config.get("max_position_embeddings") or config["model_max_length"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", config.get("norm_eps")),
        "rope.freq_base": (config.get("rope_parameters") or {"rope_theta": 10000.0})["rope_theta"],
    }
    if arch == "kimi-linear":
        content, turning = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        return keys | {
            "attention.head_count_kv": [int(not own) for own in recurrent],
            "attention.kv_lora_rank": config["kv_lora_rank"],
            "attention.key_length_mla": content + turning,
            "attention.value_length_mla": config["v_head_dim"],
            "rope.dimension_count": turning,
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "kda.head_dim": config["linear_head_dim"],
            "leading_dense_block_count": len(recurrent),
            "expert_count": config["num_experts"],
            "expert_used_count": config["num_experts_per_token"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_count": config["num_shared_experts"],
        }
    if arch == "qwen35":
        further = config.get("mtp_num_hidden_layers", 0)
        return keys | {
            "block_count": config["num_hidden_layers"] + further,
            **({"nextn_predict_layers": further} if further else {}),
            "attention.head_count_kv": config["num_key_value_heads"],
            "attention.key_length": config["head_dim"],
            "attention.value_length": config["head_dim"],
            "rope.dimension_count": config["head_dim"] // 4,
            "full_attention_interval": 4,
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": config["linear_num_value_heads"],
            "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        }
    if arch == "lfm2":
        return keys | {"attention.head_count_kv": by_layer, "shortconv.l_cache": config["conv_L_cache"]}
    space = {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_n_heads"] * config["mamba_d_head"],
    }
    if arch == "falcon-h1":
        widths = dict.fromkeys(("attention.key_length", "attention.value_length"), config["head_dim"])
        return keys | space | widths | {"attention.head_count_kv": config["num_key_value_heads"]}
    return (
        keys
        | space
        | {
            "attention.head_count_kv": by_layer,
            "attention.scale": config["attention_multiplier"],
            "embedding_scale": config["embedding_multiplier"],
            "residual_scale": config["residual_multiplier"],
            "logit_scale": config["logits_scaling"],
            "expert_shared_feed_forward_length": config["shared_intermediate_size"],
            "rope.scaling.finetuned": False,
        }
    )


def folded(tensor: Tensor, config: Mapping[str, Any], name: str) -> Tensor:
    """Multiply a tensor of Falcon-H1 with the factors that the converter moves into it."""
    gate, down = config["mlp_multipliers"]
    into = config["attention_in_multiplier"]
    factors = {
        "gate_proj": gate,
        "down_proj": down,
        "q_proj": into,
        "k_proj": into * config["key_multiplier"],
        "v_proj": into,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
        "lm_head": config["lm_head_multiplier"],
    }
    part = name.split(".")[-2]
    if part == "in_proj":
        shared = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (config["mamba_d_ssm"],) * 2 + (shared,) * 2 + (config["mamba_n_heads"],)
        parts = zip(tensor.split(sizes), config["ssm_multipliers"], strict=True)
        return torch.cat([own * factor for own, factor in parts]) * config["ssm_in_multiplier"]
    return tensor * factors.get(part, 1.0)


def tiled(tensor: Tensor, config: Mapping[str, Any], name: str, *, back: bool = False) -> Tensor:
    """Bring value heads into the order of files: the first of each key head, then the second of each."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    before = 2 * groups * config["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0
    dim = 1 if "out_proj" in name else 0
    size = (tensor.shape[dim] - before) // heads
    order = torch.arange(heads * size).view(groups, heads // groups, size).transpose(0, 1).reshape(-1)
    order = torch.cat((torch.arange(before), before + (order.argsort() if back else order)))
    return tensor.index_select(dim, order)


def convert(model: Path, path: Path, arch: str, kind: str, **metadata: Any) -> dict[str, Tensor]:
    """Write a GGUF file as llama.cpp's converter does; return the values that it holds by Hugging Face's names."""
    config = json.loads((model / "config.json").read_text())
    writer, values = GGUFWriter(path, arch), dict[str, Tensor]()
    keys = {f"{arch}.{key}": value for key, value in keys_of(arch, config).items()}
    add_keys(writer, {**keys, **tokenizer_keys(model, "gpt-2")}, metadata)
    outer = OUTER | {"model.final_layernorm.weight": "output_norm.weight"}
    outer |= {"model.embedding_norm.weight": "token_embd_norm.weight"} if arch == "lfm2" else {}

    def add(name: str, tensor: Tensor) -> Tensor:
        plain = tensor.dim() == 1 or ("conv" in name and "proj" not in name) or "in_proj_a" in name or "ssm_a" in name
        own = "F32" if plain or tensor.shape[-1] % 32 else kind
        blocks = to_blocks(tensor, own)
        add_raw(writer, name, blocks, own)
        return dequantised(blocks, own, tensor.shape)

    for name, tensor in sorted(load_file(model / "model.safetensors").items()):
        if arch == "falcon-h1":
            values[name], tensor = tensor, folded(tensor, config, name)
        if name in outer and arch == "falcon-h1":
            add(outer[name], tensor)
            continue
        if name in outer:
            shift = 1.0 if arch == "qwen35" and name == "model.norm.weight" else 0.0
            values[name] = add(outer[name], tensor + shift) - shift
            continue
        last = f"model.layers.{config['num_hidden_layers']}."
        if name in NEXT:
            shift = 1.0 if "norm" in name else 0.0
            add(f"blk.{config['num_hidden_layers']}.nextn.{NEXT[name]}", tensor + shift)
            continue
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name.replace("mtp.layers.0.", last))
        assert found is not None
        prefix, inner = f"blk.{found[1]}.", found[2]
        if inner.endswith("input_linear.weight"):
            parts = [
                add(f"{prefix}ffn_{x}.weight", part) for x, part in zip(("gate", "up"), tensor.chunk(2), strict=True)
            ]
            values[name] = torch.cat(parts)
            continue
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        turned = heads.get(inner.split(".")[1]) if arch == "granitehybrid" else None
        made = tensor
        if turned is not None:
            made = interleave(made, turned)
        if inner.endswith("A_log"):
            made = -made.exp()
        if arch == "qwen35" and "linear_attn" in inner and "norm" not in inner:
            made = tiled(made, config, inner)
        shift = 1.0 if arch == "qwen35" and "norm" in inner and "linear_attn" not in inner else 0.0
        made = (made + shift).squeeze(1) if made.dim() == 3 else made + shift
        if inner.endswith("kv_b_proj.weight"):
            by_head = tensor.view(config["num_attention_heads"], -1, tensor.shape[1])
            content = config["qk_nope_head_dim"]
            add(f"{prefix}attn_k_b.weight", by_head[:, :content].transpose(1, 2).contiguous())
            add(f"{prefix}attn_v_b.weight", by_head[:, content:].contiguous())
            values[name] = tensor
            continue
        if arch == "kimi-linear" and "conv1d" in inner:
            made = made.view(1, -1, 1, config["linear_conv_kernel_dim"])
        if inner in ("mamba.A_log", "mamba.D"):
            made = made[:, None]
        if arch == "falcon-h1":
            add(prefix + NAMES[arch][inner], made.contiguous())
            continue
        if inner == "mamba.norm.weight":
            made = made.view(config["mamba_n_groups"], -1)
        stored = add(prefix + NAMES[arch][inner], made.contiguous()).view(made.shape)
        if made is not tensor and not inner.endswith("A_log"):
            stored = (stored - shift).view(tensor.shape) if turned is None else tensor
            if arch == "qwen35" and "linear_attn" in inner and "norm" not in inner:
                stored = tiled(stored, config, inner, back=True)
        values[name] = tensor if inner.endswith("A_log") else stored
        if turned is not None and kind != "F32":
            pairs = dequantised(to_blocks(made, kind), kind, made.shape).view(turned, -1, 2, made.shape[1])
            values[name] = pairs.transpose(1, 2).reshape(tensor.shape)
    finish(writer)
    return values


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("qwen35", EVEN),
    "granite4-h": ("granitehybrid", {"shared_intermediate_size": 96}),
    "lfm2": ("lfm2", {"block_auto_adjust_ff_dim": False}),
}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", FILES)
def test_files_give_the_numbers_of_the_directory(tmp_path: Path, name: str, kind: str) -> None:
    arch, changes = FILES[name]
    model = write_family(tmp_path / "model", name, **changes)
    values = convert(model, tmp_path / "model.gguf", arch, kind)
    same = write_dequantised(model, tmp_path / "same", values, torch.float32)
    expected = logits_of(same, torch.float32, "plain")
    found = logits_of(tmp_path / "model.gguf", torch.float32, "plain")
    assert expected.std() > 0.1
    # The logarithm of a rate of decay is not quite what its exponential came from.
    torch.testing.assert_close(found, expected, atol=0 if arch == "lfm2" else 1e-4, rtol=0)


@pytest.mark.parametrize("name", ["falconh1", "falconh1-norm"])
def test_factors_that_files_have_in_their_weights(tmp_path: Path, name: str) -> None:
    changes = {"mamba_n_groups": 1} if name == "falconh1" else {"tie_word_embeddings": False}
    model = write_family(tmp_path / "model", name, **changes)
    convert(model, tmp_path / "model.gguf", "falcon-h1", "F32")
    expected, found = logits_of(model), logits_of(tmp_path / "model.gguf")
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_layer_for_further_tokens(tmp_path: Path) -> None:
    """Drafts are those of the directory."""
    model = write_mtp(tmp_path / "model", "qwen3_5", **EVEN, calm=0.3)
    convert(model, file := tmp_path / "model.gguf", "qwen35", "F32")
    given = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, return_rejected=True)
    found = []
    for path in model, file:
        spec = {"method": "mtp", "lengths": "fixed", "num_speculative_tokens": 3}
        llm = LLM(str(path), dtype="float32", speculative_config=spec)
        (one,) = run(llm, [Ask(tuple(random_tokens(30)), given)])
        found.append((one.token_ids, one.rejected))
    assert found[0][1]
    assert found[0] == found[1]


def test_a_trained_layer_of_a_file(tmp_path: Path) -> None:
    """It drafts for the file and for the directory alike, and as the file's own where nothing was learnt."""
    model = write_mtp(tmp_path / "model", "qwen3_5", **EVEN, calm=0.3)
    convert(model, file := tmp_path / "model.gguf", "qwen35", "F32")
    teacher = Teacher(TrainOptions(target=str(file), data="none", output="none", dtype="float32"))
    layer = tmp_path / "layer"
    layer.mkdir()
    save_head(layer, Trainee(Options(), teacher, []), torch.float32, "", file)
    given = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, return_rejected=True)
    found = []
    for path, where in (file, {}), (file, {"model": str(layer)}), (model, {"model": str(layer)}):
        spec = {"method": "mtp", "lengths": "fixed", "num_speculative_tokens": 3, **where}
        llm = LLM(str(path), dtype="float32", speculative_config=spec)
        (one,) = run(llm, [Ask(tuple(random_tokens(30)), given)])
        found.append((one.token_ids, one.rejected))
    assert found[0][1]
    assert found[0] == found[1] == found[2]


def test_files_with_a_decay_for_each_channel(tmp_path: Path) -> None:
    model = write_family(tmp_path / "model", "kimilinear", mlp_layer_types=["dense"] * 4)
    convert(model, tmp_path / "model.gguf", "kimi-linear", "F32")
    expected, found = logits_of(model), logits_of(tmp_path / "model.gguf")
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


WRITTEN: dict[str, tuple[str, dict[str, Any]]] = FILES | {
    "falconh1": ("falcon-h1", {}),
    "kimilinear": ("kimi-linear", {"mlp_layer_types": ["dense"] * 4}),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_an_independent_converter_writes_the_same(tmp_path: Path, name: str) -> None:
    arch, changes = WRITTEN[name]
    model = write_family(tmp_path / "model", name, **changes)
    export(model, tmp_path / "ours.gguf", "bf16")
    convert(model, tmp_path / "theirs.gguf", arch, "BF16")
    assert_same_file(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        pytest.param("qwen3_5", 1, marks=pytest.mark.soak),
        ("qwen3next", 1),
        ("nemotronh-experts", 1),
        pytest.param("deepseekv3", 1, marks=pytest.mark.soak),
        ("qwen3_5", 3),
        ("deepseekv3", 3),
        ("mimov2flash", 3),
        ("step3p5", 3),
    ],
)
def test_written_layers_for_further_tokens(tmp_path: Path, name: str, layers: int) -> None:
    """Drafts are those of the directory, also of what is written once more."""
    own = {**EVEN, "mlp_only_layers": []} if name.startswith("qwen") else {"n_group": 1, "topk_group": 1}
    model = write_mtp(tmp_path / "model", name, layers=layers, **own, calm=0.3)
    weights = {key: tensor.half() for key, tensor in load_file(model / "model.safetensors").items()}
    same = write_dequantised(model, tmp_path / "same", weights, torch.float32)
    first = export(same, tmp_path / "first.gguf", "f16").path
    second = export(first, tmp_path / "second.gguf", "f16").path
    given = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, return_rejected=True)
    found = []
    for path in same, first, second:
        assert len(mtp_layers(describe_model(str(path)))) == layers
        spec = {"method": "mtp", "lengths": "fixed", "num_speculative_tokens": 4}
        llm = LLM(str(path), dtype="float32", speculative_config=spec)
        (one,) = run(llm, [Ask(tuple(random_tokens(30)), given)])
        found.append((one.token_ids, one.rejected))
    assert found[0][1]
    assert found[0] == found[1] == found[2]


def test_a_layer_that_files_have_no_place_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = write_mtp(tmp_path / "model", "mellum", mlp_layer_types=None)
    with caplog.at_level(logging.WARNING, logger="parlay"):
        file = export(model, tmp_path / "model.gguf", "bf16").path
    assert "its MTP layer is left out; files of mellum have no place for it" in caplog.text
    assert describe_model(str(file)).num_layers == 3


NOT_WRITTEN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("lfm2-biases", {}, "biases of convolutions, which llama.cpp does not read"),
    ("qwen3_5", {}, "linear attention whose values are not as wide as its keys, which llama.cpp"),
    ("falconh1-norm", {}, "convolutions without a bias, which llama.cpp"),
    ("falconh1-norm", {"mamba_conv_bias": True, "mamba_norm_before_gate": True}, "gate_first=False"),
    ("lfm2moe", {}, "factor="),
    ("kimilinear", {"linear_num_heads": 2}, "num_heads="),
    (
        "nemotronh-experts",
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
        "beside others",
    ),
    ("gemma4", {"layer_types": ["full_attention"] * 3}, "must tell 3 layers apart"),
)


@pytest.mark.parametrize(("name", "changes", "complaint"), NOT_WRITTEN, ids=str)
def test_what_a_file_cannot_hold(tmp_path: Path, name: str, changes: dict[str, Any], complaint: str) -> None:
    model = write_family(tmp_path / "model", name, **changes)
    with pytest.raises(ModelError, match=re.escape(complaint)) as caught:
        export(model, tmp_path / "out.gguf", "bf16")
    assert str(model) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out*"))


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("qwen3_5", {"linear_num_value_heads": 5}, "5 value heads of linear attention do not divide into 2 groups"),
    ("qwen3_5", {"linear_value_head_dim": 20}, "heads of linear attention of 24 and 20 columns"),
    ("qwen3_5", {"linear_conv_kernel_dim": 9}, "a convolution of 9 rows"),
    ("qwen3_5", {"layer_types": ["linear_attention"]}, "layer_types must list"),
    ("qwen3_5", {"attention_bias": True}, "attention_bias"),
    ("lfm2", {"conv_L_cache": 1}, "conv_L_cache=1"),
    ("lfm2", {"layer_types": ["conv", "window", "conv", "conv"]}, "layer_types must list conv or full_attention"),
    ("granite4-h", {"mamba_n_heads": 7, "mamba_n_groups": 2, "mamba_d_head": 16}, "7 Mamba heads do not divide"),
    ("granite4-h", {"mamba_d_head": 20}, "Mamba heads of 20 columns"),
    ("kimilinear", {"linear_head_dim": 40}, "heads of linear attention of 40 columns are not supported"),
    ("kimilinear", {"mla_use_nope": False}, "mla_use_nope=False is not supported"),
    (
        "kimilinear",
        {"layer_types": None, "linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [4]}},
        "kda_layers and full_attn_layers must list each of 4 layers once",
    ),
    ("falconh1", {"mamba_d_head": 12}, "6 Mamba heads of 12 columns are not mamba_d_ssm=96 columns"),
    ("falconh1", {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers must list 5 numbers"),
    ("falconh1", {"mamba_proj_bias": True}, "mamba_proj_bias=True is not supported"),
    ("granite4-h", {"time_step_limit": [1.0, 0.5]}, "time_step_limit must be two numbers in order"),
    (
        "granite4-h",
        {"layer_types": ["mamba", "window", "mamba", "mamba"]},
        "layer_types must list mamba or attention",
    ),
)


@pytest.mark.parametrize(("name", "changes", "complaint"), REFUSED, ids=str)
def test_configs_that_contradict_themselves(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, changes: dict[str, Any], complaint: str
) -> None:
    config = json.loads((checkpoint(name) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=re.escape(complaint)) as caught:
        describe_model(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_states_of_other_shapes_than_the_config_says(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    for file in checkpoint("qwen3_5").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"linear_key_head_dim": 32}))
    with pytest.raises(ModelError, match=r"linear_attn\.\S+.* has shape"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("key", ["qwen35__ssm__time_step_rank", "qwen35__ssm__inner_size"])
def test_files_whose_heads_do_not_divide(tmp_path: Path, key: str) -> None:
    model = write_family(tmp_path / "model", "qwen3_5", **EVEN)
    convert(model, file := tmp_path / "model.gguf", "qwen35", "F32", **{key: 5})
    with pytest.raises(ModelError, match="do not divide"):
        describe_model(str(file))
