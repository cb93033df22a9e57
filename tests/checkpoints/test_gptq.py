"""AWQ and GPTQ checkpoints, packed by a few obvious loops."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import essence
from checkpoints import read_config, write_llama
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.checkpoints.loader import Checkpoint
from parlay.models.select import stored_kinds
from parlay.runner.footprint import weight_bytes

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
BASE = "model.layers.0.mlp.up_proj"
AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)


def words(integers: list[list[int]], bits: int) -> Tensor:
    """Pack rows of integers, the first in the lowest bits."""
    packed = [sum(value << (bits * i) for i, value in enumerate(row)) for row in integers]
    return torch.tensor([value - (1 << 32) if value >> 31 else value for value in packed], dtype=torch.int32)


def pack(levels: Tensor, zeros: Tensor, config: dict[str, Any]) -> dict[str, Tensor]:
    """Return `qweight` and `qzeros` for integers `[inputs, outputs]` and zero points `[groups, outputs]`."""
    bits, several = config["bits"], 32 // config["bits"]
    stored = zeros
    if config["quant_method"] == "gptq" and config.get("checkpoint_format") != "gptq_v2":
        stored = (zeros - 1) % (1 << bits)
    order = AWQ_OUTPUTS if config["quant_method"] == "awq" else range(several)

    def along_outputs(rows: Tensor) -> Tensor:
        return torch.stack(
            [words([[int(row[at + o]) for o in order] for at in range(0, len(row), several)], bits) for row in rows]
        )

    if config["quant_method"] == "awq":
        return {"qweight": along_outputs(levels), "qzeros": along_outputs(stored)}
    columns = [
        words([[int(levels[at + i, o]) for i in range(several)] for at in range(0, len(levels), several)], bits)
        for o in range(levels.shape[1])
    ]
    return {"qweight": torch.stack(columns, dim=1), "qzeros": along_outputs(stored)}


def write(path: Path, config: dict[str, Any], *, act_order: bool = False) -> dict[str, Tensor]:
    """Write a model whose layers are random integers; returns what the numbers are, in float32."""
    write_llama(path, **WIDE)
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    numbers = {}
    for name in [name for name in tensors if "_proj.weight" in name]:
        outputs, inputs = tensors.pop(name).shape
        groups, top = inputs // config["group_size"], 1 << config["bits"]
        levels = torch.randint(0, top, (inputs, outputs), generator=generator)
        zeros = torch.randint(0, top, (groups, outputs), generator=generator)
        if config.get("sym"):
            zeros.fill_(top // 2)
        scales = (torch.rand(groups, outputs, generator=generator) * 0.02 / top + 0.001).half()
        group = torch.arange(inputs) // config["group_size"]
        base = name.removesuffix(".weight")
        if act_order:
            group = group[torch.randperm(inputs, generator=generator)]
        if config["quant_method"] == "gptq":
            tensors[f"{base}.g_idx"] = group.int()
        numbers[name] = torch.stack(
            [scales[group[i]].float() * (levels[i] - zeros[group[i]]).float() for i in range(inputs)], dim=1
        )
        tensors |= {f"{base}.{part}": tensor for part, tensor in pack(levels, zeros, config).items()}
        tensors[f"{base}.scales"] = scales
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    return numbers


CASES = {
    "awq": (AWQ, False, "Q4_1"),
    "gptq": (GPTQ, False, "Q4_1"),
    "gptq_v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, False, "Q4_1"),
    "gptq act-order": ({**GPTQ, "desc_act": True}, True, None),
    "gptq, groups of 16": ({**GPTQ, "group_size": 16}, False, None),
    "gptq int8": ({**GPTQ, "bits": 8, "sym": True}, False, "Q8_0"),
    "gptq int8, asymmetric": ({**GPTQ, "bits": 8}, False, None),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_what_loops_make_of_them(tmp_path: Path, case: str) -> None:
    config, act_order, kind = CASES[case]
    numbers = write(tmp_path / "model", config, act_order=act_order)
    described = read_config(tmp_path / "model")
    found = stored_kinds(described)
    assert {str(found.get(name)) for name in numbers} == {str(kind)}
    with Checkpoint(tmp_path / "model", storage="stored") as weights:
        for name, expected in numbers.items():
            assert torch.equal(weights.read(name), expected)
            stored = weights.read_weight(name, torch.float32).numbers()
            # A minimum of `Q4_1` is rounded to float16: by at most this much beside fifteen scales.
            assert torch.allclose(stored, expected, atol=float(expected.abs().max()) * 2**-11, rtol=0)
    if kind:
        plain = weight_bytes(replace(described, storage="plain"), torch.bfloat16)
        assert weight_bytes(described, torch.bfloat16) < 0.75 * plain


MIXED = {
    # GPTQModel's rules, `-:` for layers that stay as they are.
    "dynamic": {**GPTQ, "dynamic": {r"+:.*\.1\..*": {"bits": 8}, r"-:lm_head": {}}},
    "without a sign": {**GPTQ, "dynamic": {r".*\.1\.mlp\..*": {"bits": 8, "group_size": 32}}},
    # AutoRound's own words for the layouts of the other two.
    "auto-round": {
        **GPTQ,
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "extra_config": {"model.layers.1.self_attn.q_proj": {"bits": 8}, "lm_head": {"bits": 16}},
    },
}


@pytest.mark.parametrize("case", MIXED)
def test_layers_of_several_bits(tmp_path: Path, case: str) -> None:
    """Layer 1 has eight bits, layer 0 four."""
    numbers = write(tmp_path / "four", GPTQ)
    eight = write(tmp_path / "eight", {**GPTQ, "bits": 8})
    four, wide = (load_file(tmp_path / name / "model.safetensors") for name in ("four", "eight"))
    mixed = {name: wide[name] if ".1." in name else tensor for name, tensor in four.items()}
    save_file(mixed, tmp_path / "four" / "model.safetensors")
    raw = json.loads((tmp_path / "four" / "config.json").read_text())
    (tmp_path / "four" / "config.json").write_text(json.dumps({**raw, "quantization_config": MIXED[case]}))
    with Checkpoint(tmp_path / "four", storage="stored") as weights:
        for name in numbers:
            assert torch.equal(weights.read(name), (eight if ".1." in name else numbers)[name])
    llm = LLM(tmp_path / "four", max_model_len=64, speculative_config=None)
    assert len(llm.generate("a", SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0].token_ids) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dynamic": {"+:x": {"bits": 3}}}, "bits=3"),
        ({"dynamic": ["x"]}, "dynamic"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}, "packing_format"),
    ],
    ids=str,
)
def test_rules_that_are_not_served(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write(tmp_path, GPTQ)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "quantization_config": {**GPTQ, **changes}}))
    with pytest.raises(ModelError, match=words):
        read_config(tmp_path)


def alter(path: Path, **tensors: Tensor) -> None:
    file = path / "model.safetensors"
    save_file(load_file(file) | {f"{BASE}.{part}": tensor for part, tensor in tensors.items()}, file)


def test_an_index_of_zeros_leaves_inputs_in_order(tmp_path: Path) -> None:
    numbers = write(tmp_path, GPTQ)
    alter(tmp_path, g_idx=torch.zeros(128, dtype=torch.int32))
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert str(weights.kind(f"{BASE}.weight")) == "Q4_1"
        assert torch.equal(weights.read(f"{BASE}.weight"), numbers[f"{BASE}.weight"])


@pytest.mark.parametrize("size", [-0.01, 1e-6, 1e5])
def test_scales_of_any_size(tmp_path: Path, size: float) -> None:
    """AutoRound makes scales below 0; float32 has some that the float16 of blocks does not hold."""
    write(tmp_path, GPTQ)
    alter(tmp_path, scales=torch.full((2, 256), size))
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert str(weights.kind(f"{BASE}.weight")) == ("Q4_1" if size == -0.01 else "None")
        expected, found = (
            weights.read(f"{BASE}.weight"),
            weights.read_weight(f"{BASE}.weight", torch.float32).numbers(),
        )
        assert torch.allclose(found, expected, rtol=0, atol=float(expected.abs().max()) * 2**-10)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("qweight", torch.zeros(16, 256), "qweight is stored as 'F32', not as I32"),
        ("qzeros", torch.zeros(2, 32), "qzeros is stored as 'F32', not as I32"),
        ("scales", torch.ones(2, 256, dtype=torch.int32), "scales is stored as 'I32', not as F16"),
        ("g_idx", torch.zeros(128), "g_idx is stored as 'F32', not as I32"),
        ("g_idx", (torch.arange(128) // 100).int(), "g_idx gives some groups more inputs than others"),
    ],
    ids=["qweight", "qzeros", "scales", "g_idx", "uneven groups"],
)
def test_parts_of_other_types(tmp_path: Path, part: str, value: Tensor, message: str) -> None:
    write(tmp_path, GPTQ)
    alter(tmp_path, **{part: value})
    with pytest.raises(ModelError, match=message), Checkpoint(tmp_path, storage="stored") as weights:
        weights.kind(f"{BASE}.weight")


@pytest.mark.parametrize("case", ["awq", "gptq act-order"])
def test_the_same_tokens_whoever_drafts(tmp_path: Path, case: str) -> None:
    config, act_order, kind = CASES[case]
    write(tmp_path / "model", config, act_order=act_order)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=24, ignore_eos=True, logprobs=1)
    texts = []
    for speculative in (None, {"method": "ngram", "lengths": "fixed"}):
        own = config["quant_method"]
        llm = LLM(str(tmp_path / "model"), quantization=own, max_model_len=128, speculative_config=speculative)
        assert ("+Q4_1+" in llm.numerics_id) == (kind is not None)
        outputs = llm.generate([[5, 6, 7, 5, 6, 7, 5], list(range(20))], params, use_tqdm=False)
        texts.append([essence(output.outputs[0]) for output in outputs])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "quark"}, "quantised by 'quark', which is not served; awq, gptq, auto-round, fp8"),
        ({"bits": 3}, "quantization_config has bits=3; gptq is served with bits=4 or 8"),
        ({"bits": 8}, "qweight .* do not fit 8 bits of gptq"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        ({"quant_method": "awq"}, "do not fit 4 bits of awq"),
    ],
)
def test_configs_that_are_not_served_or_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path / "model", GPTQ)
    raw = json.loads((tmp_path / "model" / "config.json").read_text())
    raw["quantization_config"] |= change
    (tmp_path / "model" / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError, match=message):
        LLM(str(tmp_path / "model"), speculative_config=None)


def test_another_method_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model", GPTQ)
    with pytest.raises(ConfigError, match=r"quantization='awq', but .* is quantised by gptq; leave it out"):
        LLM(str(tmp_path / "model"), quantization="awq", speculative_config=None)


def test_damaged_parts_are_named(tmp_path: Path) -> None:
    write(tmp_path / "model", GPTQ)
    file, base = tmp_path / "model" / "model.safetensors", "model.layers.1.mlp.up_proj"
    whole = load_file(file)
    shutil.copy(file, tmp_path / "whole")
    damages: dict[str, tuple[Any, str]] = {
        "scales": (None, "lacks model.layers.1.mlp.up_proj.scales"),
        "qzeros": (torch.zeros(2, 3, dtype=torch.int32), "do not fit 4 bits of gptq"),
        "g_idx": (torch.full((128,), 9, dtype=torch.int32), "names groups beyond the 2 that have scales"),
    }
    for part, (value, message) in damages.items():
        tensors = {**whole, f"{base}.{part}": value}
        save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
        with pytest.raises(ModelError, match=message):
            LLM(str(tmp_path / "model"), speculative_config=None)
    scales = whole[f"{base}.scales"].clone()
    scales[1, 5] = torch.nan
    save_file({**whole, f"{base}.scales": scales}, file)
    with pytest.raises(ModelError, match="holds values that are infinite or not numbers"):
        LLM(str(tmp_path / "model"), speculative_config=None)
