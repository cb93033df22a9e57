"""FP8 and compressed-tensors checkpoints, written and read by a few obvious loops."""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
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
from torch import Tensor

from parlay import LLM, ConfigError, ModelError
from parlay.checkpoints.loader import Checkpoint
from parlay.checkpoints.quantised.config import read_quantisation
from parlay.checkpoints.quantised.layers import fits_float16
from parlay.models.select import describe_as, stored_kinds

WIDE = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1, "head_dim": 32}
QUERIES = "model.layers.0.self_attn.q_proj.weight"
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """Return a config as llm-compressor writes it."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "fp8 by tensor": (FP8, None),
    "fp8 by channel": ({**FP8, "quant_method": "fbgemm_fp8"}, None),
    "fp8 in blocks": ({**FP8, "weight_block_size": [48, 32]}, None),
    "compressed fp8": (compressed("float-quantized", type="float", strategy="channel"), None),
    "compressed fp8 in blocks": (compressed("float-quantized", strategy="block", block_structure=[48, 32]), None),
    "int8 by channel": (compressed("int-quantized", strategy="channel"), "Q8_0"),
    "int8 by tensor": (compressed("naive-quantized", strategy="tensor"), "Q8_0"),
    "int8 with zero points": (compressed("int-quantized", strategy="channel", symmetric=False), None),
    "int8 with tiny scales": (compressed("int-quantized", strategy="channel"), None),
    "w4a16": (compressed("pack-quantized", num_bits=4, group_size=32), "Q4_1"),
    "w4a16 by channel": (compressed("pack-quantized", num_bits=4, strategy="channel"), "Q4_1"),
    "w4a16 with zero points": (compressed("pack-quantized", num_bits=4, group_size=64, symmetric=False), "Q4_1"),
    "w4a16 in groups of 16": (compressed("pack-quantized", num_bits=4, group_size=16), None),
    "w4a16 act-order": (compressed("pack-quantized", num_bits=4, group_size=32, actorder="group"), None),
    "w8a16": (compressed("pack-quantized", num_bits=8, group_size=32), "Q8_0"),
}


def words(integers: list[int], bits: int) -> list[int]:
    """Pack integers, of which half of the range was added to each, the first in the lowest bits."""
    several = 32 // bits
    padded = integers + [0] * (-len(integers) % several)
    made = []
    for at in range(0, len(padded), several):
        word = sum(
            (value + (1 << bits - 1) & (1 << bits) - 1) << bits * i
            for i, value in enumerate(padded[at : at + several])
        )
        made.append(word - (1 << 32) if word >> 31 else word)
    return made


def layer(
    case: str, config: dict[str, Any], outputs: int, inputs: int, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return a layer's tensors, and what its numbers are in float64."""
    generator = torch.Generator().manual_seed(seed)
    weights = config.get("config_groups", {}).get("group_0", {}).get("weights", {})
    bits = weights.get("num_bits", 8)
    numbers = torch.zeros((outputs, inputs), dtype=torch.float64)

    def scales(*shape: int) -> Tensor:
        least = 1e-6 if "tiny" in case else 1e-3
        return torch.rand(shape, generator=generator).half().float() * least + least

    if "int8" not in case and "a16" not in case:
        stored = (torch.randn((outputs, inputs), generator=generator) * 20).to(torch.float8_e4m3fn)
        high, wide = (
            (48, 32)
            if "blocks" in case
            else (1, inputs)
            if "channel" in case or case == "compressed fp8"
            else (outputs, inputs)
        )
        found = scales(-(-outputs // high), -(-inputs // wide))
        for o in range(outputs):
            numbers[o] = stored[o].double() * found[o // high].double().repeat_interleave(wide)[:inputs]
        name = "weight_scale_inv" if case == "fp8 in blocks" else "weight_scale"
        one = found.reshape(()) if case == "fp8 by tensor" else found
        return {"weight": stored, name: one, "input_scale": torch.ones(1)}, numbers
    top = 1 << bits - 1
    levels = torch.randint(-top, top, (outputs, inputs), generator=generator)
    each = weights.get("group_size") or inputs
    groups = 1 if case == "int8 by tensor" else inputs // each
    found = (scales(outputs, groups) if case != "int8 by tensor" else scales(1)).float()
    group = torch.arange(inputs) // each
    if "act-order" in case:
        group = group[torch.randperm(inputs, generator=generator)]
    zeros = torch.randint(-top, top, (outputs, groups), generator=generator)
    asymmetric = "zero points" in case
    for o in range(outputs):
        zero = zeros[o, group].double() if asymmetric else 0.0
        scale = found.double() if case == "int8 by tensor" else found[o, group].double()
        numbers[o] = scale * (levels[o].double() - zero)
    if "a16" not in case:
        made = {"weight": levels.to(torch.int8), "weight_scale": found}
        return made | ({"weight_zero_point": zeros.to(torch.int8)} if asymmetric else {}), numbers
    made = {
        "weight_packed": torch.tensor([words(row, bits) for row in levels.tolist()], dtype=torch.int32),
        "weight_scale": found,
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    if asymmetric:
        made["weight_zero_point"] = torch.tensor([words(col, bits) for col in zeros.T.tolist()], dtype=torch.int32).T
    if "act-order" in case:
        made["weight_g_idx"] = group.int()
    return made, numbers


def write(path: Path, case: str, mlp: str | None = None) -> dict[str, Tensor]:
    """Write a model with such layers, others in MLPs; returns what their numbers are, in float64."""
    write_llama(path, **WIDE)
    file, config = path / "model.safetensors", CASES[case][0]
    tensors, numbers = load_file(file), {}
    for seed, name in enumerate([name for name in tensors if "_proj.weight" in name]):
        base = name.removesuffix(".weight")
        own = mlp if mlp is not None and ".mlp." in name else case
        made, numbers[name] = layer(own, CASES[own][0], *tensors.pop(name).shape, seed)
        tensors |= {f"{base}.{part}": tensor.contiguous() for part, tensor in made.items()}
    save_file(tensors, file)
    if mlp is not None:
        groups = [
            {**CASES[one][0]["config_groups"]["group_0"], "format": CASES[one][0]["format"]} for one in (case, mlp)
        ]
        config = {**config, "format": "mixed-precision", "config_groups": {"a": groups[0], "b": groups[1]}}
    set_config(path, config)
    return numbers


def set_config(path: Path, config: dict[str, Any]) -> None:
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], None]:
    """Return what copies a model of a case; each is written once."""
    made: dict[str, Path] = {}

    def copy(case: str, to: Path) -> None:
        if case not in made:
            made[case] = tmp_path_factory.mktemp("scaled")
            write(made[case], case)
        copytree(made[case], to, dirs_exist_ok=True)

    return copy


def alter(path: Path, **tensors: Tensor | None) -> dict[str, Tensor]:
    """Replace tensors of the first layer's queries, None leaving one out; returns all that there are then."""
    file = path / "model.safetensors"
    found = load_file(file)
    for part, tensor in tensors.items():
        name = f"model.layers.0.self_attn.q_proj.{part}"
        found.pop(name, None)
        if tensor is not None:
            found[name] = tensor
    save_file(found, file)
    return found


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_what_loops_make_of_them(tmp_path: Path, case: str) -> None:
    numbers = write(tmp_path, case)
    kinds = stored_kinds(read_config(tmp_path))
    assert {str(kinds.get(name)) for name in numbers} == {str(CASES[case][1])}
    with Checkpoint(tmp_path, storage="stored") as weights:
        for name, expected in numbers.items():
            assert torch.allclose(weights.read(name).double(), expected, rtol=1e-6, atol=0)
            stored = weights.read_weight(name, torch.float32).numbers().double()
            # Scales and minimums of blocks are rounded to float16.
            assert torch.allclose(stored, expected, atol=float(expected.abs().max()) * 2**-10, rtol=0)


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
            assert torch.allclose(weights.read(name).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("other", ["w8a16", "compressed fp8", "w4a16 in groups of 16"])
def test_a_layer_fits_one_scheme_as_a_whole(tmp_path: Path, other: str) -> None:
    """Zero points that are lost are missed, though layers of another scheme of the config have none."""
    write(tmp_path, "w4a16 with zero points", other)
    alter(tmp_path, weight_zero_point=None)
    with pytest.raises(ModelError, match=r"lacks model.layers.0.self_attn.q_proj.weight_zero_point"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(("bits", "sizes"), [(4, (1e-5, 1e4)), (8, (1e-5, 1e5))])
def test_scales_that_float16_cannot_hold_are_dequantised(tmp_path: Path, bits: int, sizes: tuple[float, ...]) -> None:
    write(tmp_path, f"w{bits}a16")
    for size in sizes:
        scales = torch.full((128, 4), 1e-3)
        scales[5] = size
        alter(tmp_path, weight_scale=scales)
        assert QUERIES not in stored_kinds(read_config(tmp_path))
        with Checkpoint(tmp_path, storage="stored") as weights:
            assert torch.equal(weights.read_weight(QUERIES, torch.float32).numbers(), weights.read(QUERIES))


def test_a_group_of_nearly_nothing_keeps_its_matrix_in_blocks(tmp_path: Path) -> None:
    write(tmp_path, "w4a16")
    scales = torch.full((128, 4), 1e-3)
    scales[5, 2] = 1e-7
    alter(tmp_path, weight_scale=scales)
    assert str(stored_kinds(read_config(tmp_path))[QUERIES]) == "Q4_1"
    with Checkpoint(tmp_path, storage="stored") as weights:
        expected, found = weights.read(QUERIES), weights.read_weight(QUERIES, torch.float32).numbers()
        assert torch.allclose(found[5], expected[5], rtol=0, atol=float(expected[5].abs().max()) * 2**-10)


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


@pytest.mark.parametrize("index", [torch.full((128,), -1), torch.arange(128) // 32])
def test_an_index_that_says_nothing_keeps_blocks(tmp_path: Path, index: Tensor) -> None:
    numbers = write(tmp_path, "w4a16")
    alter(tmp_path, weight_g_idx=index.int())
    assert str(stored_kinds(read_config(tmp_path))[QUERIES]) == "Q4_1"
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert torch.allclose(weights.read(QUERIES).double(), numbers[QUERIES], rtol=1e-6, atol=0)


def test_zero_points_of_packed_integers_may_be_bytes(tmp_path: Path) -> None:
    numbers = write(tmp_path, "w4a16")
    zeros = torch.randint(-8, 8, (128, 4), generator=torch.Generator().manual_seed(0))
    tensors = alter(tmp_path, weight_zero_point=zeros.char())
    spread = (zeros * tensors[QUERIES.replace(".weight", ".weight_scale")]).repeat_interleave(32, dim=1)
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert torch.allclose(weights.read(QUERIES).double(), numbers[QUERIES] - spread.double(), atol=1e-7)


def test_scales_may_be_below_0(tmp_path: Path) -> None:
    """AutoRound's are, where the smallest number of a group is the one of largest magnitude."""
    numbers = write(tmp_path, "w4a16")
    name = QUERIES.replace(".weight", ".weight_scale")
    scales = load_file(tmp_path / "model.safetensors")[name]
    scales[::2] *= -1
    alter(tmp_path, weight_scale=scales)
    numbers[QUERIES][::2] *= -1
    with Checkpoint(tmp_path, storage="stored") as weights:
        assert str(weights.kind(QUERIES)) == "Q4_1"
        found = weights.read_weight(QUERIES, torch.float32).numbers().double()
        assert torch.allclose(found, numbers[QUERIES], rtol=0, atol=float(numbers[QUERIES].abs().max()) * 2**-10)


def test_the_key_of_early_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, "int8 by channel")
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text())
    raw["compression_config"] = raw.pop("quantization_config")
    file.write_text(json.dumps(raw))
    assert describe_as(tmp_path, "stored", "compressed-tensors").raw == raw
    assert str(stored_kinds(read_config(tmp_path))[QUERIES]) == "Q8_0"


def test_zero_points_that_are_all_zero_keep_eight_bits(tmp_path: Path) -> None:
    write(tmp_path, "int8 by channel")
    alter(tmp_path, weight_zero_point=torch.zeros(128, 1, dtype=torch.int8))
    assert str(stored_kinds(read_config(tmp_path))["model.layers.0.self_attn.q_proj.weight"]) == "Q8_0"


@pytest.mark.parametrize("case", ["fp8 in blocks", "int8 by channel", "w4a16 with zero points"])
def test_tokens_are_the_same_with_speculation(tmp_path: Path, case: str) -> None:
    write(tmp_path, case)
    asks = half_repeating(0.7)[:4]
    expected = run(LLM(tmp_path, max_model_len=128, speculative_config=None), asks)
    speculative = {"method": "ngram", "prompt_lookup_min": 1, "lengths": "fixed"}
    assert_same(run(LLM(tmp_path, max_model_len=128, speculative_config=speculative), asks), expected)


@pytest.mark.parametrize("case", ["fp8 in blocks", "int8 by channel", "w4a16 with zero points"])
def test_a_plain_checkpoint_of_the_same_numbers_answers_alike(tmp_path: Path, case: str) -> None:
    numbers = write(tmp_path / "small", case)
    plain = write_llama(tmp_path / "plain", **WIDE)
    tensors = load_file(plain / "model.safetensors")
    save_file(tensors | {name: x.float() for name, x in numbers.items()}, plain / "model.safetensors")
    asks = half_repeating(0.0)[:4]
    found, expected = (
        run(LLM(path, max_model_len=128, dequantize=True, speculative_config=None), asks)
        for path in (tmp_path / "small", plain)
    )
    assert [a.token_ids for a in found] == [b.token_ids for b in expected]


def test_the_quantization_may_be_named(tmp_path: Path) -> None:
    write(tmp_path, "int8 by channel")
    LLM(tmp_path, quantization="compressed-tensors", max_model_len=64, speculative_config=None)
    with pytest.raises(ConfigError, match=r"quantization=.fp8., but .* is quantised by compressed-tensors"):
        LLM(tmp_path, quantization="fp8", max_model_len=64)


@pytest.mark.parametrize(
    ("case", "tensors", "message"),
    [
        (
            "fp8 by tensor",
            {"weight_scale": torch.tensor(float("nan"))},
            "holds scales that are 0 or no finite numbers",
        ),
        ("fp8 by channel", {"weight_scale": torch.zeros(128, 1)}, "holds scales that are 0 or no finite numbers"),
        (
            "fp8 by channel",
            {"weight_scale": torch.ones(3, 1)},
            r"weight_scale has shape \[3, 1\], which cannot be the",
        ),
        ("fp8 in blocks", {"weight_scale_inv": torch.ones(2, 4)}, r"weight_scale_inv has shape \[2, 4\]"),
        ("fp8 by channel", {"weight": torch.ones(128, 128)}, "is stored as F32 beside a scale; int8 and"),
        ("fp8 by channel", {"weight": None}, "lacks model.layers.0.self_attn.q_proj.weight; fetch"),
        ("w4a16", {"weight_scale": None}, "lacks model.layers.0.self_attn.q_proj.weight_scale"),
        ("w4a16", {"weight_shape": torch.tensor([128, 64])}, r"weight_packed has shape \[128, 16\], which cannot be"),
        ("w4a16", {"weight_shape": torch.tensor([128])}, "cannot be outputs and inputs"),
        (
            "w4a16 act-order",
            {"weight_g_idx": torch.full((128,), 4).int()},
            "names groups beyond the 4 that have scales",
        ),
        ("w4a16 act-order", {"weight_g_idx": torch.zeros(5).int()}, "cannot be groups of 128 inputs"),
        ("w4a16 with zero points", {"weight_zero_point": torch.zeros(3, 2).int()}, "cannot be zero points beside"),
        (
            "w4a16 with zero points",
            {"weight_zero_point": None},
            "lacks model.layers.0.self_attn.q_proj.weight_zero_p",
        ),
        ("w4a16 act-order", {"weight_g_idx": torch.zeros(128).int()}, "gives some groups more inputs than others"),
        ("w4a16 act-order", {"weight_g_idx": torch.zeros(128)}, "weight_g_idx is stored as 'F32', not as I32 or I64"),
        ("w4a16", {"weight_packed": torch.zeros(128, 16)}, "weight_packed is stored as 'F32', not as I32"),
        ("w4a16", {"weight_shape": torch.full((2,), torch.nan)}, "weight_shape is stored as 'F32'"),
        ("w4a16", {"weight_shape": torch.tensor([128, 1 << 40])}, "weight_packed has shape"),
        ("w4a16", {"weight_scale": torch.ones(128, 2)}, "cannot be the scales of groups as large as the config says"),
        ("w4a16", {"weight_scale": torch.ones(128, 4).int()}, "weight_scale is stored as 'I32', not as F32 or"),
        ("w4a16 by channel", {"weight_scale": torch.ones(128, 4)}, "of groups as large as the config says"),
        (
            "fp8 by tensor",
            {"weight_scale": torch.ones(3)},
            r"weight_scale has shape \[3\], which cannot be the scales",
        ),
        ("fp8 by tensor", {"weight_scale": None}, "stored as F8_E4M3 but lacks the scales that go with it"),
        ("int8 by channel", {"weight_packed": torch.zeros(128, 32).int()}, "lacks .*q_proj.weight_shape; fetch"),
        (
            "w4a16",
            {"weight_packed": None, "weight_shape": None, "weight": torch.ones(128, 128).char()},
            "q_proj is not packed into words, unlike what its quantization_config says",
        ),
        (
            "int8 with zero points",
            {"weight_zero_point": torch.zeros(128, 1)},
            "zero_point is stored as 'F32', not as",
        ),
        ("w4a16 act-order", {"weight_g_idx": (torch.arange(128) // 32 - 1).int()}, "names groups beyond the 4"),
        (
            "int8 by channel",
            {"weight_scale": torch.full((128, 1), torch.inf)},
            "holds scales that are 0 or no finite numbers",
        ),
    ],
    ids=[str(i) for i in range(28)],
)
def test_damage(
    tmp_path: Path,
    written: Callable[[str, Path], None],
    case: str,
    tensors: dict[str, Tensor | None],
    message: str,
) -> None:
    written(case, tmp_path)
    alter(tmp_path, **tensors)
    with pytest.raises(ModelError, match=message), Checkpoint(tmp_path, storage="stored") as weights:
        weights.read("model.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**FP8, "fmt": "e5m2"}, "served as e4m3, not as 'e5m2'"),
        ({**FP8, "weight_block_size": [128]}, r"must have two sizes above 0, not \[128\]"),
        ({**FP8, "weight_block_size": [0, 128]}, "must have two sizes above 0"),
        (compressed("marlin-24"), "served in the formats pack-quantized, .* not 'marlin-24'"),
        (
            {**compressed("int-quantized"), "config_groups": {"a": {"weights": 3}}},
            "has weights=3, which must be a map",
        ),
        (compressed("mixed-precision"), "served in the formats pack-quantized, .* not 'mixed-precision'"),
        (compressed("pack-quantized", num_bits=4, group_size="x"), "has group_size='x', which must be an integer"),
        (compressed("pack-quantized", num_bits=True), "of True bits; as pack-quantized served are 4 or 8"),
        (compressed("pack-quantized", num_bits=3), "of 3 bits; as pack-quantized served are 4 or 8"),
        (compressed("int-quantized", num_bits=4), "of 4 bits; as int-quantized served are 8"),
        ({**compressed("int-quantized"), "config_groups": [1]}, "needs config_groups, a mapping of mappings"),
        ({**compressed("int-quantized"), "sparsity_config": {"format": "24"}}, "has a sparsity_config, which is not"),
        (
            {**compressed("int-quantized"), "transform_config": {"a": 1}},
            "has a transform_config, which is not served",
        ),
        (
            {"quant_method": "quark"},
            "quantised by 'quark', which is not served; awq, gptq, auto-round, fp8, compressed-tensors",
        ),
    ],
    ids=[str(i) for i in range(14)],
)
def test_configs_that_are_not_served(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write_llama(tmp_path, **WIDE)
    set_config(tmp_path, config)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


WHOLE = [config for config, _ in CASES.values()] + [
    {"quant_method": "awq", "bits": 4, "version": "gemm"},
    {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False},
]


def keys(value: object) -> list[tuple[str, ...]]:
    """Return where there is something to replace in mappings of mappings."""
    if not isinstance(value, dict):
        return []
    return [(key, *rest) for key, inner in value.items() for rest in [(), *keys(inner)]]


@settings(max_examples=500)
@given(st.data())
def test_any_config_is_read_or_refused(data: st.DataObject) -> None:
    config = deepcopy(data.draw(st.sampled_from(WHOLE)))
    *outer, last = data.draw(st.sampled_from(keys(config)))
    reduce(lambda inner, key: inner[key], outer, config)[last] = data.draw(JUNK)
    # Anything else than a ModelError, such as one of Python's own, would fail this test.
    with suppress(ModelError):
        packing = read_quantisation(Path("model"), {"quantization_config": config})
        assert packing is not None
        assert packing.schemes
        assert {scheme.bits for scheme in packing.schemes} <= {4, 8}
        assert all(scheme.group >= 0 for scheme in packing.schemes)
        assert packing.blocks is None or min(packing.blocks) > 0
