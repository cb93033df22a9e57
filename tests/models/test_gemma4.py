"""Gemma 4: GGUF files, their tokenizer, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from families import write_family
from gguf import GGUFWriter
from gguf_families import dequantised
from gguf_files import (
    ARCHES,
    add_keys,
    add_raw,
    assert_same_file,
    finish,
    to_blocks,
    tokenizer_keys,
    write_dequantised,
)
from pieces import logits_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from parlay import ConfigError, ModelError
from parlay.models.export.gguf import export
from parlay.models.select import cache_spec, check_ranks, describe_model
from parlay.models.stages import stage_starts
from parlay.parallel.group import Group
from parlay.parallel.pipeline import Pipeline
from parlay.text.gguf_tokenizer import read_gguf_tokenizer
from parlay.text.gguf_vocabulary import vocabulary


def convert(model: Path, path: Path, kind: str, **metadata: Any) -> dict[str, Tensor]:
    """Write a GGUF file as llama.cpp's converter does; return the values that it holds by Hugging Face's names."""
    config = json.loads((model / "config.json").read_text())
    writer, layers = GGUFWriter(path, "gemma4"), config["num_hidden_layers"]
    near = [kind == "sliding_attention" for kind in config["layer_types"]]
    wide = next(iter(config["per_layer_config"].values()))
    local, shared = config["num_key_value_heads"], config["num_kv_shared_layers"]
    inner, wider = config["intermediate_size"], config["use_double_wide_mlp"]
    keys = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "feed_forward_length": [inner * (2 if wider and i >= layers - shared else 1) for i in range(layers)],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": [local if one else wide.get("num_key_value_heads", local) for one in near],
        "attention.key_length": wide["head_dim"],
        "attention.value_length": wide["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": near,
        "attention.shared_kv_layers": shared,
        "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["top_k_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }
    add_keys(writer, {**{f"gemma4.{k}": v for k, v in keys.items()}, **tokenizer_keys(model, "gpt-2")}, metadata)
    table, values = gguf.get_tensor_name_map(ARCHES["gemma4"], layers), dict[str, Tensor]()

    def add(name: str, tensor: Tensor) -> Tensor:
        own = "F32" if tensor.dim() == 1 or tensor.shape[-1] % 32 or "router" in name else kind
        if name.endswith("router.scale"):
            stored = f"blk.{name.split('.')[2]}.ffn_gate_inp.scale"
        elif name.endswith("per_expert_scale"):
            stored = f"blk.{name.split('.')[2]}.ffn_down_exps.scale"
        else:
            found = table.get_name(name if name.endswith(".weight") else f"{name}.weight", try_suffixes=(".weight",))
            assert found is not None, name
            stored = found
        blocks = to_blocks(tensor, own)
        add_raw(writer, stored, blocks, own)
        return dequantised(blocks, own, tensor.shape)

    turning = int(wide["head_dim"] * 0.25 / 2)
    divisors = torch.tensor([1.0] * turning + [1e30] * (wide["head_dim"] // 2 - turning))
    add_raw(writer, "rope_freqs.weight", to_blocks(divisors, "F32"), "F32")
    for name, tensor in sorted(load_file(model / "model.safetensors").items()):
        values[name] = add(name, tensor)
    finish(writer)
    return values


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", ["gemma4", "gemma4-inputs", "gemma4-experts"])
def test_files_have_the_bits_of_the_directory(tmp_path: Path, name: str, kind: str) -> None:
    model = write_family(tmp_path / "model", name)
    values = convert(model, tmp_path / "model.gguf", kind)
    same = write_dequantised(model, tmp_path / "same", values, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        expected = logits_of(same, dtype, "plain")
        assert expected.std() > 0.1
        assert torch.equal(logits_of(tmp_path / "model.gguf", dtype, "plain"), expected)


@pytest.mark.parametrize("name", ["gemma4", "gemma4-inputs", "gemma4-experts"])
def test_an_independent_converter_writes_the_same_files(tmp_path: Path, name: str) -> None:
    model = write_family(tmp_path / "model", name)
    export(model, tmp_path / "ours.gguf", "bf16")
    convert(model, tmp_path / "theirs.gguf", "BF16")
    assert_same_file(tmp_path / "ours.gguf", tmp_path / "theirs.gguf", ("head_count_kv", "feed_forward_length"))


def test_what_the_cache_keeps(checkpoint: Callable[[str], Path]) -> None:
    """Layers that read an earlier one's keys and values keep none."""
    spec = cache_spec(describe_model(str(checkpoint("gemma4-inputs"))), torch.float32)
    assert spec.heads == ((2, 16, 16), (2, 32, 32)) * 2 + ((2, 0, 0),) * 2
    assert spec.sources == (-1, -1, -1, -1, 2, 3)
    assert spec.bytes_per_token == 2 * 4 * (2 * 16 + 2 * 32) * 2


@pytest.mark.parametrize("gguf_file", [False, True], ids=["directory", "gguf"])
def test_keys_that_nothing_reads(tmp_path: Path, *, gguf_file: bool) -> None:
    """Published files have them in all layers, and say how tokens of images see each other."""
    model = write_family(tmp_path / "model", "gemma4-inputs")
    expected = logits_of(model)
    config, tensors = json.loads((model / "config.json").read_text()), load_file(model / "model.safetensors")
    (model / "config.json").write_text(json.dumps(config | {"use_bidirectional_attention": "vision"}))
    for name in [name for name in tensors if ".layers.2.self_attn." in name]:
        tensors.setdefault(name.replace("layers.2.", "layers.4."), tensors[name].clone())
    assert "model.layers.4.self_attn.k_norm.weight" in tensors
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    if gguf_file:
        convert(model, tmp_path / "model.gguf", "F32")
    assert torch.equal(logits_of(tmp_path / "model.gguf" if gguf_file else model), expected)


def test_refusals(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    config = json.loads((checkpoint("gemma4-inputs") / "config.json").read_text())
    for changes, complaint in (
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"vocab_size_per_layer_input": 5}, "vocab_size_per_layer_input must be vocab_size"),
        ({"num_kv_shared_layers": 6}, "leaves layer 0 none to read"),
        ({"per_layer_config": {"1": {"head_dim": 520}}}, "2 heads of 520 columns"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "3 heads of 16 columns"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(ModelError, match=re.escape(complaint)) as caught:
            describe_model(str(tmp_path))
        assert "\n" not in str(caught.value)


def test_stages_begin_where_no_later_layer_reads_from_before(checkpoint: Callable[[str], Path]) -> None:
    """Of six layers the last two read the third and the fourth."""
    config = describe_model(str(checkpoint("gemma4-inputs")))
    assert stage_starts(config) == [0, 1, 2]
    stages = [Group(pipeline=Pipeline(stage, 3)) for stage in range(3)]
    kept = [cache_spec(config, torch.float32, group) for group in stages]
    assert [spec.sources for spec in kept] == [(-1,), (-1,), (-1, -1, 0, 1)]
    check_ranks(config, 1, 3)
    with pytest.raises(ConfigError, match=r"pipeline_parallel_size=4 is more than the 3 stages .* lower it"):
        check_ranks(config, 1, 4)
    assert stage_starts(describe_model(str(checkpoint("gemma4")))) == [0, 1, 2]


def test_layers_that_cannot_be_told_apart(tmp_path: Path) -> None:
    model = write_family(tmp_path / "model", "gemma4")
    convert(model, file := tmp_path / "model.gguf", "F32", gemma4__attention__sliding_window_pattern=[True] * 3)
    with pytest.raises(ModelError, match="must tell 3 layers apart"):
        describe_model(str(file))


TEXTS = ("Hello  world", " leading", "a\n\n\nb\n", "é ü €", "tabs\tand 123", "\u4f60\u597d", "")


def made_tokenizer(*further: tuple[str, str]) -> tuple[Tokenizer, list[str], list[tuple[str, str]]]:
    """Return one as of Hugging Face's files, its tokens and its merges; `further` are more of these."""
    marks = ["<unk>", "<bos>", "<eos>", *(f"<0x{i:02X}>" for i in range(256))]
    letters = ["\u2581", *"Helo wrdabingkts123".replace(" ", ""), "\n", "\n\n", "\n\n\n", "é"]
    merged = ["He", "ll", "Hell", "Hello", "\u2581\u2581", "wo", "or", "wor", "ld", "\u2581w", "\u2581wor"]
    merges = [("H", "e"), ("l", "l"), ("He", "ll"), ("Hell", "o"), ("\u2581", "\u2581"), ("\u2581", "w"), ("o", "r")]
    merges += [("\u2581w", "or"), ("l", "d"), *further]
    tokens = list(dict.fromkeys([*marks, *letters, *merged]))
    vocab = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made, tokens, merges


def test_a_written_tokenizer(tmp_path: Path) -> None:
    """Its file has its merges, and not scores alone, as files of other pieces have."""
    made, tokens, merges = made_tokenizer(("\n", "\n"), ("\n\n", "\n"))
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    made.add_special_tokens(tokens[:3])
    made.save(str(tmp_path / "tokenizer.json"))
    named = {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    keys = vocabulary(tmp_path, "gemma4", len(tokens), [2], {})
    assert keys["tokenizer.ggml.model"] == "gemma4"
    assert keys["tokenizer.ggml.merges"] == [" ".join(pair) for pair in merges]
    writer = GGUFWriter(tmp_path / "vocab.gguf", "gemma4")
    add_keys(writer, keys, {"tokenizer__huggingface__json": None})
    finish(writer)
    read, _ = read_gguf_tokenizer(tmp_path / "vocab.gguf")
    for text in TEXTS:
        assert read.encode(text).ids == made.encode(text).ids
        assert read.decode(read.encode(text).ids) == text


def test_tokenizer(tmp_path: Path) -> None:
    """As the one of Hugging Face's files: merges of a line whose spaces are marks, bytes where there is no token."""
    expected, tokens, merges = made_tokenizer()
    vocab = {token: i for i, token in enumerate(tokens)}
    writer = GGUFWriter(tmp_path / "vocab.gguf", "gemma4")
    kinds = [3 if i < 3 else 6 if token.startswith("<0x") else 1 for i, token in enumerate(tokens)]
    keys = {"model": "gemma4", "tokens": tokens, "token_type": kinds, "merges": [" ".join(pair) for pair in merges]}
    keys |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "scores": [0.0] * len(tokens)}
    add_keys(writer, {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, {})
    finish(writer)
    tokenizer, config = read_gguf_tokenizer(tmp_path / "vocab.gguf")
    assert config["bos_token"] == "<bos>"
    for text in TEXTS:
        found = tokenizer.encode(text).ids
        assert found[:1] == [1]
        if "\n" not in text:  # line ends are merged there, and are tokens of their own here
            assert found[1:] == expected.encode(text).ids
        assert tokenizer.decode(found) == text
    assert tokenizer.encode("a\n\n\nb", add_special_tokens=False).ids == [vocab["a"], vocab["\n\n\n"], vocab["b"]]
