"""Quantised checkpoints of every format: their numbers are those of a few obvious loops, and damage is named."""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from asking import assert_same, half_repeating, run
from checkpoints import read_config, write_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from stored_layers import (
    CASES,
    FP8,
    GPTQ,
    NESTED,
    QUERIES,
    STATE,
    WIDE,
    alter,
    as_json,
    bitsandbytes,
    compressed,
    set_config,
    write,
)
from torch import Tensor

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.checkpoints.loader import Checkpoint
from parlay.checkpoints.quantised.config import read_quantisation
from parlay.checkpoints.quantised.integers import fits_float16
from parlay.models.select import describe_as, stored_kinds
from parlay.runner.footprint import weight_bytes

WEIGHT = f"{QUERIES}.weight"
# Whose scales are computed, and rounded to float32 on the way.
COMPUTED_SCALES = ("nf4 nested", "llm.int8")
Written = Callable[[str, Path], dict[str, Tensor]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """What copies a model of a case, each written once, and returns what its layers' numbers are."""
    made: dict[str, tuple[Path, dict[str, Tensor]]] = {}

    def copy(case: str, to: Path) -> dict[str, Tensor]:
        if case not in made:
            path = tmp_path_factory.mktemp("stored")
            made[case] = path, write(path, case)
        copytree(made[case][0], to, dirs_exist_ok=True)
        return {name: numbers.clone() for name, numbers in made[case][1].items()}

    return copy


def near(found: Tensor, expected: Tensor, bits: int) -> bool:
    """Whether numbers differ by so small a part of the largest."""
    return torch.allclose(found.double(), expected.double(), atol=float(expected.abs().max()) * 2**-bits, rtol=0)


def kind_of(path: Path) -> str:
    return str(stored_kinds(read_config(path)).get(WEIGHT))


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_what_loops_make_of_them(tmp_path: Path, written: Written, case: str) -> None:
    numbers, kind = written(case, tmp_path), CASES[case].kind
    config = read_config(tmp_path)
    kinds = stored_kinds(config)
    assert {str(kinds.get(name)) for name in numbers} == {str(kind)}
    with Checkpoint(tmp_path, storage="stored") as weights:
        for name, expected in numbers.items():
            found, stored = weights.read(name), weights.read_weight(name, torch.float32).numbers()
            if case in COMPUTED_SCALES:
                assert torch.allclose(found.double(), expected, rtol=1e-6, atol=1e-9)
            else:
                assert torch.equal(found, expected.float())
            assert weights.quantised(name)
            # Scales of blocks are rounded to float16, and so are minimums, each beside fifteen scales.
            if kind == "Q8_0":
                assert torch.allclose(stored.double(), expected, rtol=2**-11, atol=0)
            else:
                assert near(stored, expected, 11 if "gptq" in case or case == "awq" else 10)
    if kind:
        plain = weight_bytes(replace(config, storage="plain"), torch.bfloat16)
        assert weight_bytes(config, torch.bfloat16) < 0.75 * plain


@pytest.mark.parametrize(
    ("case", "mlp", "kinds"),
    [
        ("w4a16", "w8a16", {"Q4_1", "Q8_0"}),
        ("w4a16 with zero points", "compressed fp8", {"Q4_1", "None"}),
        ("compressed fp8 in blocks", "compressed fp8", {"None"}),
    ],
)
def test_schemes_may_differ_between_layers(tmp_path: Path, case: str, mlp: str, kinds: set[str]) -> None:
    numbers = write(tmp_path, case, mlp)
    stored = stored_kinds(read_config(tmp_path))
    assert {str(stored.get(name)) for name in numbers} == kinds
    with Checkpoint(tmp_path, storage="stored") as weights:
        for name, expected in numbers.items():
            assert torch.equal(weights.read(name), expected.float())


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
def test_layers_of_several_bits(tmp_path: Path, written: Written, case: str) -> None:
    """Layer 1 has eight bits, layer 0 four."""
    names = ("gptq", "gptq of eight bits, asymmetric")
    numbers = [written(name, tmp_path / name) for name in names]
    four, eight = (load_file(tmp_path / name / "model.safetensors") for name in names)
    mixed = {name: eight[name] if ".1." in name else tensor for name, tensor in four.items()}
    save_file(mixed, tmp_path / names[0] / "model.safetensors")
    set_config(tmp_path / names[0], MIXED[case])
    with Checkpoint(tmp_path / names[0], storage="stored") as weights:
        for name in numbers[0]:
            assert torch.equal(weights.read(name), numbers[".1." in name][name].float())
    llm = LLM(tmp_path / names[0], max_model_len=64, speculative_config=None)
    assert len(llm.generate("a", SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0].token_ids) == 4


@pytest.mark.parametrize("other", ["w8a16", "compressed fp8", "w4a16 in groups of 16"])
def test_a_layer_fits_one_scheme_as_a_whole(tmp_path: Path, other: str) -> None:
    """Zero points that are lost are missed, though layers of another scheme of the config have none."""
    write(tmp_path, "w4a16 with zero points", other)
    alter(tmp_path, weight_zero_point=None)
    with pytest.raises(ModelError, match=r"lacks model.layers.0.self_attn.q_proj.weight_zero_point"):
        Checkpoint(tmp_path)


SCALES = {"w4a16": "weight_scale", "w8a16": "weight_scale", "gptq": "scales"}


def scales_of(path: Path, case: str) -> tuple[Tensor, Tensor]:
    """Return a layer's scales as they are stored, in float32, and a view `[outputs, groups]` of them."""
    stored = load_file(path / "model.safetensors")[f"{QUERIES}.{SCALES[case]}"].float()
    return stored, stored if len(stored) == 128 else stored.T


@pytest.mark.parametrize(
    ("case", "size"),
    [("w4a16", 1e-5), ("w4a16", 1e4), ("w8a16", 1e-5), ("w8a16", 1e5), ("gptq", 1e-6), ("gptq", 1e5)],
)
def test_scales_that_float16_cannot_hold(tmp_path: Path, written: Written, case: str, size: float) -> None:
    written(case, tmp_path)
    scales, view = scales_of(tmp_path, case)
    view[5] = size
    alter(tmp_path, **{SCALES[case]: scales})
    assert kind_of(tmp_path) == "None"
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert torch.equal(weights.read_weight(WEIGHT, torch.float32).numbers(), weights.read(WEIGHT))


def test_a_group_of_nearly_nothing_keeps_its_matrix_in_blocks(tmp_path: Path, written: Written) -> None:
    written("w4a16", tmp_path)
    scales = torch.full((128, 4), 1e-3)
    scales[5, 2] = 1e-7
    alter(tmp_path, weight_scale=scales)
    assert kind_of(tmp_path) == "Q4_1"
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert near(weights.read_weight(WEIGHT, torch.float32).numbers()[5], weights.read(WEIGHT)[5], 10)


@pytest.mark.parametrize("case", ["w4a16", "gptq"])
def test_scales_may_be_below_0(tmp_path: Path, written: Written, case: str) -> None:
    """AutoRound's are, where the smallest number of a group is the one of largest magnitude."""
    expected = written(case, tmp_path)[WEIGHT]
    scales, view = scales_of(tmp_path, case)
    view[::2] *= -1
    alter(tmp_path, **{SCALES[case]: scales})
    expected[::2] *= -1
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert str(weights.kind(WEIGHT)) == "Q4_1"
        assert near(weights.read_weight(WEIGHT, torch.float32).numbers(), expected, 10)


@given(
    st.lists(st.tuples(*[st.floats(-2e5, 2e5, width=32)] * 3), min_size=1, max_size=3),
    st.sampled_from([1e-12, 1e-8, 1e-6, 1e-4, 1.0]),
    st.sampled_from([1, 15]),
)
def test_what_float16_holds_is_what_loops_say(rows: list[tuple[float, ...]], size: float, times: int) -> None:
    scales = torch.tensor(rows) * size
    expected = True
    for row in scales.tolist():
        most = max(map(abs, row))
        if most * times > 65504:
            expected = False
            break
        for scale in row:
            expected &= abs(struct.unpack("e", struct.pack("e", scale))[0] - scale) <= most / 2048
    assert fits_float16(scales, times) == expected


@pytest.mark.parametrize(
    ("case", "part", "index"),
    [
        ("w4a16", "weight_g_idx", torch.full((128,), -1)),
        ("w4a16", "weight_g_idx", torch.arange(128) // 32),
        ("gptq", "g_idx", torch.zeros(128)),
    ],
)
def test_an_index_that_says_nothing_keeps_blocks(
    tmp_path: Path, written: Written, case: str, part: str, index: Tensor
) -> None:
    numbers = written(case, tmp_path)
    alter(tmp_path, **{part: index.int()})
    assert kind_of(tmp_path) == "Q4_1"
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert torch.equal(weights.read(WEIGHT), numbers[WEIGHT].float())


def test_zero_points_of_packed_integers_may_be_bytes(tmp_path: Path, written: Written) -> None:
    numbers = written("w4a16", tmp_path)
    zeros = torch.randint(-8, 8, (128, 4), generator=torch.Generator().manual_seed(0))
    tensors = alter(tmp_path, weight_zero_point=zeros.char())
    spread = (zeros * tensors[f"{QUERIES}.weight_scale"]).repeat_interleave(32, dim=1)
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert torch.allclose(weights.read(WEIGHT).double(), numbers[WEIGHT] - spread.double(), atol=1e-7)


def test_zero_points_that_are_all_zero_keep_eight_bits(tmp_path: Path, written: Written) -> None:
    written("int8 by channel", tmp_path)
    alter(tmp_path, weight_zero_point=torch.zeros(128, 1, dtype=torch.int8))
    assert kind_of(tmp_path) == "Q8_0"


def test_the_key_of_early_checkpoints(tmp_path: Path, written: Written) -> None:
    written("int8 by channel", tmp_path)
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text())
    raw["compression_config"] = raw.pop("quantization_config")
    file.write_text(json.dumps(raw))
    assert describe_as(tmp_path, "stored", "compressed-tensors").raw == raw
    assert kind_of(tmp_path) == "Q8_0"


SPOKEN = (
    "awq",
    "gptq act-order",
    "fp8 in blocks",
    "int8 by channel",
    "w4a16 with zero points",
    "nf4 nested",
    "llm.int8",
    "mlx of 3 bits",
)


@pytest.mark.parametrize("case", SPOKEN)
def test_tokens_are_those_of_a_plain_checkpoint_whoever_drafts(tmp_path: Path, written: Written, case: str) -> None:
    """Dequantised, those of the same numbers in float32; and in any case the same with speculation."""
    numbers = written(case, tmp_path / "stored")
    plain = write_llama(tmp_path / "plain", **WIDE)
    tensors = load_file(plain / "model.safetensors")
    save_file(tensors | {name: x.float() for name, x in numbers.items()}, plain / "model.safetensors")
    config, kind, _ = CASES[case]
    options = {"max_model_len": 128, "quantization": config.get("quant_method", "mlx")}
    asks = half_repeating(0.7)[:4]
    found = run(LLM(tmp_path / "stored", **options, dequantize=True, speculative_config=None), asks)
    expected = run(LLM(plain, max_model_len=128, speculative_config=None), asks)
    assert [a.token_ids for a in found] == [b.token_ids for b in expected]
    if kind is not None:
        llm = LLM(tmp_path / "stored", **options, speculative_config=None)
        assert f"+{kind}+" in llm.numerics_id
        found = run(llm, asks)
    speculative = {"method": "ngram", "prompt_lookup_min": 1, "lengths": "fixed"}
    llm = LLM(tmp_path / "stored", **options, dequantize=kind is None, speculative_config=speculative)
    assert_same(run(llm, asks), found)


@pytest.mark.parametrize(
    ("case", "named", "own"),
    [("gptq", "awq", "gptq"), ("int8 by channel", "fp8", "compressed-tensors")],
)
def test_another_method_than_the_checkpoints_is_refused(
    tmp_path: Path, written: Written, case: str, named: str, own: str
) -> None:
    written(case, tmp_path)
    with pytest.raises(ConfigError, match=rf"quantization='{named}', but .* is quantised by {own}; leave it out"):
        LLM(tmp_path, quantization=named, speculative_config=None)


IDX, LAYER = "weight_g_idx", "model.layers.0.self_attn.q_proj"
NF4_STATE = "weight.quant_state.bitsandbytes__nf4"
DAMAGE: list[tuple[str, dict[str, Tensor | None], str]] = [
    ("gptq", {"qweight": torch.zeros(16, 128)}, "qweight is stored as 'F32', not as I32"),
    ("gptq", {"qzeros": torch.zeros(2, 16)}, "qzeros is stored as 'F32', not as I32"),
    ("gptq", {"qzeros": torch.zeros(2, 3).int()}, "do not fit 4 bits of gptq"),
    ("gptq", {"scales": torch.ones(2, 128).int()}, "scales is stored as 'I32', not as F16"),
    ("gptq", {"scales": torch.full((2, 128), torch.nan)}, "holds values that are infinite or not numbers"),
    ("gptq", {"scales": None}, f"lacks {LAYER}.scales"),
    ("gptq", {"g_idx": torch.zeros(128)}, "g_idx is stored as 'F32', not as I32"),
    ("gptq", {"g_idx": (torch.arange(128) // 100).int()}, "g_idx gives some groups more inputs than others"),
    ("gptq", {"g_idx": torch.full((128,), 9).int()}, "names groups beyond the 2 that have scales"),
    ("fp8 by tensor", {"weight_scale": torch.tensor(torch.nan)}, "holds scales that are 0 or no finite numbers"),
    ("fp8 by tensor", {"weight_scale": torch.ones(3)}, r"weight_scale has shape \[3\], which cannot be the scales"),
    ("fp8 by tensor", {"weight_scale": None}, "stored as F8_E4M3 but lacks the scales that go with it"),
    ("fp8 by channel", {"weight_scale": torch.zeros(128, 1)}, "holds scales that are 0 or no finite numbers"),
    ("fp8 by channel", {"weight_scale": torch.ones(3, 1)}, r"weight_scale has shape \[3, 1\], which cannot be the"),
    ("fp8 by channel", {"weight": torch.ones(128, 128)}, "is stored as F32 beside a scale; int8 and"),
    ("fp8 by channel", {"weight": None}, f"lacks {LAYER}.weight; fetch"),
    ("fp8 in blocks", {"weight_scale_inv": torch.ones(2, 4)}, r"weight_scale_inv has shape \[2, 4\]"),
    ("int8 by channel", {"weight_packed": torch.zeros(128, 32).int()}, "lacks .*q_proj.weight_shape; fetch"),
    ("int8 by channel", {"weight_scale": torch.full((128, 1), torch.inf)}, "scales that are 0 or no finite numbers"),
    ("int8 with zero points", {"weight_zero_point": torch.zeros(128, 1)}, "zero_point is stored as 'F32', not as"),
    ("w4a16", {"weight_scale": None}, f"lacks {LAYER}.weight_scale"),
    ("w4a16", {"weight_scale": torch.ones(128, 2)}, "cannot be the scales of groups as large as the config says"),
    ("w4a16", {"weight_scale": torch.ones(128, 4).int()}, "weight_scale is stored as 'I32', not as F32 or"),
    ("w4a16", {"weight_shape": torch.tensor([128, 64])}, r"weight_packed has shape \[128, 16\], which cannot be"),
    ("w4a16", {"weight_shape": torch.tensor([128, 1 << 40])}, "weight_packed has shape"),
    ("w4a16", {"weight_shape": torch.tensor([128])}, "cannot be outputs and inputs"),
    ("w4a16", {"weight_shape": torch.full((2,), torch.nan)}, "weight_shape is stored as 'F32'"),
    ("w4a16", {"weight_packed": torch.zeros(128, 16)}, "weight_packed is stored as 'F32', not as I32"),
    (
        "w4a16",
        {"weight_packed": None, "weight_shape": None, "weight": torch.ones(128, 128).char()},
        "q_proj is not packed into words, unlike what its quantization_config says",
    ),
    ("w4a16 by channel", {"weight_scale": torch.ones(128, 4)}, "of groups as large as the config says"),
    ("w4a16 with zero points", {"weight_zero_point": torch.zeros(3, 2).int()}, "cannot be zero points beside"),
    ("w4a16 with zero points", {"weight_zero_point": None}, f"lacks {LAYER}.weight_zero_p"),
    ("w4a16 act-order", {IDX: torch.full((128,), 4).int()}, "names groups beyond the 4 that have scales"),
    ("w4a16 act-order", {IDX: (torch.arange(128) // 32 - 1).int()}, "names groups beyond the 4"),
    ("w4a16 act-order", {IDX: torch.zeros(5).int()}, "cannot be groups of 128 inputs"),
    ("w4a16 act-order", {IDX: torch.zeros(128).int()}, "gives some groups more inputs than others"),
    ("w4a16 act-order", {IDX: torch.zeros(128)}, "weight_g_idx is stored as 'F32', not as I32 or I64"),
    ("nf4", {"weight": None}, f"lacks {LAYER}.weight; fetch it again"),
    ("nf4", {"weight": torch.zeros(5, 1).byte()}, "cannot be 128 x 128 numbers of four bits"),
    ("nf4", {"weight": torch.zeros(128, 64).short()}, "q_proj.weight is stored as 'I16', not as"),
    ("nf4", {"weight.absmax": None}, f"lacks {LAYER}.weight.absmax"),
    ("nf4", {"weight.absmax": torch.ones(7)}, "cannot be the 256 numbers that its quant_state asks for"),
    ("nf4", {"weight.absmax": torch.ones(256).half()}, "absmax is stored as 'F16', not as F32"),
    ("nf4", {"weight.absmax": torch.full((256,), -1.0)}, "absmax makes scales or levels that are no finite"),
    ("nf4", {"weight.quant_map": torch.full((16,), torch.nan)}, "quant_map makes scales or levels"),
    ("nf4", {"weight.quant_map": torch.zeros(15)}, "cannot be the 16 numbers"),
    ("nf4", {NF4_STATE: None}, f"lacks {LAYER}.weight.quant_state.bitsandbytes__nf4"),
    ("nf4", {NF4_STATE: as_json({**STATE, "blocksize": 0})}, "does not describe a matrix of two sizes"),
    ("nf4", {NF4_STATE: as_json({**STATE, "shape": [128]})}, "does not describe a matrix"),
    ("nf4", {NF4_STATE: as_json({**STATE, "shape": [1 << 60, 128]})}, "does not describe a matrix"),
    ("nf4", {NF4_STATE: as_json({**STATE, "quant_type": "fp4"})}, "does not describe a matrix"),
    ("nf4", {NF4_STATE: as_json([1])}, "does not describe a matrix"),
    ("nf4", {NF4_STATE: torch.full((3,), 255).byte()}, "does not describe a matrix"),
    ("nf4", {NF4_STATE: torch.zeros(5000).byte()}, "cannot be a state, which has 4096 bytes"),
    ("nf4 nested", {"weight.nested_quant_map": None}, f"lacks {LAYER}.weight.nested_quant"),
    ("nf4 nested", {"weight.nested_absmax": torch.full((6,), torch.inf)}, "absmax makes scales or levels"),
    ("nf4 nested", {"weight.nested_absmax": torch.ones(4)}, "cannot be the 6 numbers"),
    ("nf4 nested", {"weight.nested_absmax": None}, "does not describe a matrix"),
    ("nf4 nested", {NF4_STATE: as_json({**NESTED, "nested_offset": torch.inf})}, "does not describe a matrix"),
    ("llm.int8", {"SCB": None}, "weight is stored as I8 but lacks the scales that go with it"),
    ("llm.int8", {"SCB": torch.full((128,), torch.nan)}, "SCB holds scales that are 0 or no finite numbers"),
    ("llm.int8", {"SCB": torch.ones(3)}, "cannot be the scales of 128 x 128 numbers"),
    ("llm.int8", {"weight_format": torch.tensor(2).byte()}, "is laid out for a certain GPU"),
    ("llm.int8", {"weight": torch.zeros(128, 128)}, "is stored as F32 beside a scale"),
]


@pytest.mark.parametrize(("case", "tensors", "message"), DAMAGE, ids=[str(i) for i in range(len(DAMAGE))])
def test_damage(tmp_path: Path, written: Written, case: str, tensors: dict[str, Tensor | None], message: str) -> None:
    written(case, tmp_path)
    alter(tmp_path, **tensors)
    with pytest.raises(ModelError, match=message), Checkpoint(tmp_path, storage="stored") as weights:
        weights.read(WEIGHT)


@pytest.mark.parametrize(
    ("case", "config", "message"),
    [
        ("gptq", {**GPTQ, "bits": 8}, "qweight .* do not fit 8 bits of gptq"),
        ("gptq", {**GPTQ, "quant_method": "awq"}, "do not fit 4 bits of awq"),
        ("nf4", bitsandbytes(load_in_8bit=True), "is stored as U8 but lacks the scales"),
    ],
)
def test_configs_that_do_not_fit(
    tmp_path: Path, written: Written, case: str, config: dict[str, Any], message: str
) -> None:
    written(case, tmp_path)
    set_config(tmp_path, config)
    with pytest.raises(ModelError, match=message):
        LLM(tmp_path, speculative_config=None)


NOT_SERVED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "quark"}, "by 'quark', which is not supported; awq, gptq, auto-round, fp8, compressed-tensors"),
    ({**GPTQ, "bits": 3}, "quantization_config has bits=3; gptq is supported with bits=4 or 8"),
    ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
    ({**GPTQ, "dynamic": {"+:x": {"bits": 3}}}, "bits=3"),
    ({**GPTQ, "dynamic": ["x"]}, "dynamic"),
    ({**GPTQ, "quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}, "packing_format"),
    ({**FP8, "fmt": "e5m2"}, "supported as e4m3, not as 'e5m2'"),
    ({**FP8, "weight_block_size": [128]}, r"must have two sizes above 0, not \[128\]"),
    ({**FP8, "weight_block_size": [0, 128]}, "must have two sizes above 0"),
    (compressed("marlin-24"), "supported in the formats pack-quantized, .* not 'marlin-24'"),
    (compressed("mixed-precision"), "supported in the formats pack-quantized, .* not 'mixed-precision'"),
    (compressed("pack-quantized", num_bits=4, group_size="x"), "has group_size='x', which must be an integer"),
    (compressed("pack-quantized", num_bits=True), "of True bits; pack-quantized is supported with 4 or 8"),
    (compressed("pack-quantized", num_bits=3), "of 3 bits; pack-quantized is supported with 4 or 8"),
    (compressed("int-quantized", num_bits=4), "of 4 bits; int-quantized is supported with 8"),
    ({**compressed("int-quantized"), "config_groups": {"a": {"weights": 3}}}, "has weights=3, which must be a map"),
    ({**compressed("int-quantized"), "config_groups": [1]}, "needs config_groups, a mapping of mappings"),
    ({**compressed("int-quantized"), "sparsity_config": {"format": "24"}}, "has a sparsity_config, which is not"),
    ({**compressed("int-quantized"), "transform_config": {"a": 1}}, "has a transform_config, which is not supported"),
    (bitsandbytes(), "needs either load_in_4bit or load_in_8bit to be true"),
    (bitsandbytes(load_in_4bit=True, load_in_8bit=True), "needs either load_in_4bit or load_in_8bit to be true"),
    (bitsandbytes(load_in_4bit=1), "needs either load_in_4bit or load_in_8bit to be true"),
]


@pytest.mark.parametrize(("config", "message"), NOT_SERVED, ids=[str(i) for i in range(len(NOT_SERVED))])
def test_configs_that_are_not_supported(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write_llama(tmp_path, **WIDE)
    set_config(tmp_path, config)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def keys(value: object) -> list[tuple[str, ...]]:
    """Return where there is something to replace in mappings of mappings."""
    if not isinstance(value, dict):
        return []
    return [(key, *rest) for key, inner in value.items() for rest in [(), *keys(inner)]]


@settings(max_examples=200)
@given(st.data())
def test_any_config_is_read_or_refused(data: st.DataObject) -> None:
    config = deepcopy(data.draw(st.sampled_from([case.config for case in CASES.values()])))
    *outer, last = data.draw(st.sampled_from(keys(config)))
    reduce(lambda inner, key: inner[key], outer, config)[last] = data.draw(JUNK)
    # Anything else than a ModelError, such as one of Python's own, would fail this test.
    with suppress(ModelError):
        packing = read_quantisation(Path("model"), {"quantization_config": config})
        assert packing is not None
        assert packing.schemes
        assert {scheme.bits for scheme in packing.schemes} <= {2, 3, 4, 5, 6, 8}
        assert all(scheme.group >= 0 for scheme in packing.schemes)
        assert packing.blocks is None or min(packing.blocks) > 0
