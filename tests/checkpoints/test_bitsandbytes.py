"""bitsandbytes checkpoints, written and read by a few obvious loops."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import assert_same, half_repeating, run
from checkpoints import read_config, write_llama
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import LLM, ModelError
from parlay.checkpoints.loader import Checkpoint
from parlay.models.select import stored_kinds

SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "head_dim": 24}
# The case's name, and the config beside `quant_method`.
CASES: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "nf4 nested": {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "nf4 in bfloat16": {"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"},
    "nf4 in large blocks": {"load_in_4bit": True},
    "int8": {"load_in_8bit": True},
}
STATE = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [96, 96]}
NF4 = (-1.0, -0.7, -0.53, -0.4, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0)
POSITIVE = (0.0052, 0.6667, 1.0, 0.3333, 0.5, 0.1667, 0.25)
FP4 = (0.0, *POSITIVE, 0.0, *(-level for level in POSITIVE))


def layer(case: str, outputs: int, inputs: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return a layer's tensors, and what its numbers are in float64."""
    generator = torch.Generator().manual_seed(seed)
    count = outputs * inputs
    if case == "int8":
        levels = torch.randint(-127, 128, (outputs, inputs), generator=generator)
        scales = torch.rand(outputs, generator=generator) + 3.0
        scales[1] = 0.0
        made = {"weight": levels.to(torch.int8), "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return made, levels.double() * scales.double()[:, None] / 127
    form = case[:3]
    block = 4096 if "large" in case else 64
    levels = torch.tensor(FP4 if form == "fp4" else NF4)
    codes = torch.randint(0, 16, (count,), generator=generator).tolist()
    blocks = -(-count // block)
    state: dict[str, Any] = {**STATE, "quant_type": form, "blocksize": block, "shape": [outputs, inputs]}
    made = {"weight.quant_map": levels}
    if "nested" in case:
        inner = torch.randint(0, 256, (blocks,), generator=generator)
        inner_levels = torch.linspace(-1, 1, 256)
        outer = torch.rand(-(-blocks // 32), generator=generator) * 0.01
        state |= {"nested_blocksize": 32, "nested_dtype": "float32", "nested_offset": 0.0213}
        made |= {
            "weight.absmax": inner.to(torch.uint8),
            "weight.nested_absmax": outer,
            "weight.nested_quant_map": inner_levels,
        }
        scales = [float(inner_levels[int(i)]) * float(outer[at // 32]) + 0.0213 for at, i in enumerate(inner)]
    else:
        made["weight.absmax"] = torch.rand(blocks, generator=generator) * 0.05
        scales = made["weight.absmax"].tolist()
    numbers = [float(levels[code]) * scales[at // block] for at, code in enumerate(codes)]
    stored = torch.tensor([high << 4 | low for high, low in zip(codes[::2], codes[1::2], strict=True)])
    made["weight"] = stored.to(torch.uint8)[:, None]
    if "bfloat16" in case:
        made["weight"] = made["weight"].flatten().view(torch.bfloat16)[:, None]
    made[f"weight.quant_state.bitsandbytes__{form}"] = words(state)
    return made, torch.tensor(numbers, dtype=torch.float64).view(outputs, inputs)


def words(state: object) -> Tensor:
    """Return a mapping as bytes of JSON."""
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def write(path: Path, case: str) -> dict[str, Tensor]:
    """Write a model with such layers; returns what their numbers are, in float64."""
    write_llama(path, **SIZES)
    file = path / "model.safetensors"
    tensors, numbers = load_file(file), {}
    for seed, name in enumerate([name for name in tensors if "_proj.weight" in name]):
        made, numbers[name] = layer(case, *tensors.pop(name).shape, seed)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": x.contiguous() for part, x in made.items()}
    save_file(tensors, file)
    set_config(path, CASES[case])
    return numbers


def set_config(path: Path, config: dict[str, Any]) -> None:
    raw = json.loads((path / "config.json").read_text())
    said = {"quant_method": "bitsandbytes", **config}
    (path / "config.json").write_text(json.dumps({**raw, "quantization_config": said}))


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_what_loops_make_of_them(tmp_path: Path, case: str) -> None:
    numbers = write(tmp_path, case)
    kinds = stored_kinds(read_config(tmp_path))
    # 96 and 160 inputs are multiples of 32; one output is all zeros.
    assert {str(kinds.get(name)) for name in numbers} == {"Q8_0" if case == "int8" else "None"}
    with Checkpoint(tmp_path, storage="stored") as weights:
        for name, expected in numbers.items():
            assert torch.allclose(weights.read(name).double(), expected, rtol=1e-6, atol=1e-9)
            assert weights.quantised(name)


def test_int8_stays_eight_bits(tmp_path: Path) -> None:
    numbers = write(tmp_path, "int8")
    with Checkpoint(tmp_path, storage="stored") as weights:
        for name, expected in numbers.items():
            stored = weights.read_weight(name, torch.float32).numbers().double()
            assert torch.allclose(stored, expected, rtol=2**-11, atol=0)


@pytest.mark.parametrize("case", ["nf4 nested", "int8"])
def test_tokens_are_those_of_a_plain_checkpoint_and_the_same_with_speculation(tmp_path: Path, case: str) -> None:
    numbers = write(tmp_path / "packed", case)
    plain = write_llama(tmp_path / "plain", **SIZES)
    tensors = load_file(plain / "model.safetensors")
    save_file(tensors | {name: x.float() for name, x in numbers.items()}, plain / "model.safetensors")
    asks = half_repeating(0.7)[:4]
    expected = run(LLM(plain, max_model_len=128, speculative_config=None), asks)
    same = {"max_model_len": 128, "quantization": "bitsandbytes", "dequantize": True}
    found = run(LLM(tmp_path / "packed", **same, speculative_config=None), asks)
    assert [a.token_ids for a in found] == [b.token_ids for b in expected]
    speculative = {"method": "ngram", "prompt_lookup_min": 1, "lengths": "fixed"}
    assert_same(run(LLM(tmp_path / "packed", **same, speculative_config=speculative), asks), found)


NESTED = {**STATE, "nested_blocksize": 32, "nested_offset": 0.02}
NF4_STATE = "weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("case", "tensors", "message"),
    [
        ("nf4", {"weight": None}, "lacks model.layers.0.self_attn.q_proj.weight; fetch it again"),
        ("nf4", {"weight.absmax": None}, "lacks model.layers.0.self_attn.q_proj.weight.absmax"),
        ("nf4", {NF4_STATE: None}, "lacks model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4"),
        ("nf4", {"weight": torch.zeros(5, 1, dtype=torch.uint8)}, "cannot be 96 x 96 numbers of four bits"),
        ("nf4", {"weight": torch.zeros(96, 48, dtype=torch.int16)}, "q_proj.weight is stored as 'I16', not as"),
        ("nf4", {"weight.absmax": torch.ones(7)}, "cannot be the 144 numbers that its quant_state asks for"),
        ("nf4", {"weight.absmax": torch.ones(144).half()}, "absmax is stored as 'F16', not as F32"),
        ("nf4", {"weight.absmax": torch.full((144,), -1.0)}, "absmax makes scales or levels that are no finite"),
        ("nf4", {"weight.quant_map": torch.full((16,), torch.nan)}, "quant_map makes scales or levels"),
        ("nf4", {"weight.quant_map": torch.zeros(15)}, "cannot be the 16 numbers"),
        (
            "nf4 nested",
            {"weight.nested_quant_map": None},
            "lacks model.layers.0.self_attn.q_proj.weight.nested_quant",
        ),
        ("nf4 nested", {"weight.nested_absmax": torch.full((5,), torch.inf)}, "absmax makes scales or levels"),
        ("nf4 nested", {"weight.nested_absmax": torch.ones(4)}, "cannot be the 5 numbers"),
        ("nf4 nested", {"weight.nested_absmax": None}, "does not describe a matrix"),
        ("nf4 nested", {NF4_STATE: words({**NESTED, "nested_offset": float("inf")})}, "does not describe a matrix"),
        ("nf4", {NF4_STATE: words({**STATE, "blocksize": 0})}, "does not describe a matrix of two sizes"),
        ("nf4", {NF4_STATE: words({**STATE, "shape": [96]})}, "does not describe a matrix"),
        ("nf4", {NF4_STATE: words({**STATE, "shape": [1 << 60, 96]})}, "does not describe a matrix"),
        ("nf4", {NF4_STATE: words({**STATE, "quant_type": "fp4"})}, "does not describe a matrix"),
        ("nf4", {NF4_STATE: words([1])}, "does not describe a matrix"),
        ("nf4", {NF4_STATE: torch.full((3,), 255, dtype=torch.uint8)}, "does not describe a matrix"),
        ("nf4", {NF4_STATE: torch.zeros(5000, dtype=torch.uint8)}, "cannot be a state, which has 4096 bytes"),
        ("int8", {"SCB": None}, "weight is stored as I8 but lacks the scales that go with it"),
        ("int8", {"SCB": torch.full((96,), torch.nan)}, "SCB holds scales that are 0 or no finite numbers"),
        ("int8", {"SCB": torch.ones(3)}, "cannot be the scales of 96 x 96 numbers"),
        ("int8", {"weight_format": torch.tensor(2, dtype=torch.uint8)}, "is laid out for a certain GPU"),
        ("int8", {"weight": torch.zeros(96, 96)}, "is stored as F32 beside a scale"),
    ],
    ids=[str(i) for i in range(27)],
)
def test_damage(tmp_path: Path, case: str, tensors: dict[str, Tensor | None], message: str) -> None:
    write(tmp_path, case)
    file = tmp_path / "model.safetensors"
    found = load_file(file)
    for part, tensor in tensors.items():
        name = f"model.layers.0.self_attn.q_proj.{part}"
        found.pop(name)
        if tensor is not None:
            found[name] = tensor
    save_file(found, file)
    with pytest.raises(ModelError, match=message), Checkpoint(tmp_path, storage="stored") as weights:
        weights.read("model.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize("config", [{}, {"load_in_4bit": True, "load_in_8bit": True}, {"load_in_4bit": 1}])
def test_configs_that_say_nothing(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, "nf4")
    set_config(tmp_path, config)
    with pytest.raises(ModelError, match="needs either load_in_4bit or load_in_8bit to be true"):
        read_config(tmp_path)


def test_four_bits_that_the_config_calls_eight(tmp_path: Path) -> None:
    write(tmp_path, "nf4")
    set_config(tmp_path, {"load_in_8bit": True})
    with pytest.raises(ModelError, match="is stored as U8 but lacks the scales"), Checkpoint(tmp_path):
        pass
