"""Models whose linear layers are quantised, in every format that checkpoints have, written by a few obvious loops."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from checkpoints import write_llama
from families import write_family
from safetensors.torch import load_file, save_file
from torch import Tensor

WIDE = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 32}
QUERIES = "model.layers.0.self_attn.q_proj"  # [128, 128]
Config = dict[str, Any]
Layer = tuple[dict[str, Tensor], Tensor]  # its tensors by their parts, and what its numbers are, in float64


class Case(NamedTuple):
    """A way to store layers."""

    config: Config
    kind: str | None  # the blocks that the kernels' matrices are in; None where they are dequantised
    make: Callable[[str, Config, int, int, torch.Generator], Layer]


def draw(least: int, end: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(least, end, shape, generator=generator)


def pack(rows: Tensor, bits: int, order: Sequence[int] = ()) -> Tensor:
    """Pack each row's integers into words of 32 bits, the first in the lowest bits, or those of a word in `order`."""
    several = 32 // bits
    packed = []
    for row in rows.tolist():
        parts = [row[at : at + several] for at in range(0, len(row), several)]
        values = [sum(part[o] << bits * i for i, o in enumerate(order or range(several))) for part in parts]
        packed.append([value - (1 << 32) if value >> 31 else value for value in values])
    return torch.tensor(packed, dtype=torch.int32)


# AWQ and GPTQ.

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}
_AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)


def gptq_layer(case: str, config: Config, outputs: int, inputs: int, generator: torch.Generator) -> Layer:
    bits, awq = config["bits"], config["quant_method"] == "awq"
    groups, top = inputs // config["group_size"], 1 << bits
    levels = draw(0, top, (inputs, outputs), generator)
    zeros = draw(0, top, (groups, outputs), generator)
    if config.get("sym"):
        zeros.fill_(top // 2)
    scales = (torch.rand(groups, outputs, generator=generator) * 0.02 / top + 0.001).half()
    group = torch.arange(inputs) // config["group_size"]
    if "act-order" in case:
        group = group[torch.randperm(inputs, generator=generator)]
    columns = [scales[group[i]].double() * (levels[i] - zeros[group[i]]) for i in range(inputs)]
    numbers = torch.stack(columns, dim=1)
    if awq:
        made = {"qweight": pack(levels, bits, _AWQ_OUTPUTS), "qzeros": pack(zeros, bits, _AWQ_OUTPUTS)}
        return made | {"scales": scales}, numbers
    stored = zeros if config.get("checkpoint_format") == "gptq_v2" else (zeros - 1) % top
    made = {"qweight": pack(levels.T, bits).T, "qzeros": pack(stored, bits), "g_idx": group.int()}
    return made | {"scales": scales}, numbers


# FP8 and compressed-tensors.

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def compressed(form: str, **weights: Any) -> Config:
    """Return a config as llm-compressor writes it."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "symmetric": True, **weights}}
    named = {"quant_method": "compressed-tensors", "format": form}
    return {**named, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def random_scales(case: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    least = 1e-6 if "tiny" in case else 1e-3
    return torch.rand(shape, generator=generator).half().float() * least + least


def fp8_layer(case: str, config: Config, outputs: int, inputs: int, generator: torch.Generator) -> Layer:
    stored = (torch.randn((outputs, inputs), generator=generator) * 20).to(torch.float8_e4m3fn)
    high, wide = (48, 32) if "blocks" in case else (outputs if "tensor" in case else 1, inputs)
    scales = random_scales(case, (-(-outputs // high), -(-inputs // wide)), generator)
    rows = [stored[o].double() * scales[o // high].double().repeat_interleave(wide)[:inputs] for o in range(outputs)]
    name = "weight_scale_inv" if case == "fp8 in blocks" else "weight_scale"
    one = scales.reshape(()) if case == "fp8 by tensor" else scales
    return {"weight": stored, name: one, "input_scale": torch.ones(1)}, torch.stack(rows)


def integer_layer(case: str, config: Config, outputs: int, inputs: int, generator: torch.Generator) -> Layer:
    weights = config["config_groups"]["group_0"]["weights"]
    bits, each = weights["num_bits"], weights.get("group_size") or inputs
    top, groups = 1 << bits - 1, inputs // each
    levels = draw(-top, top, (outputs, inputs), generator)
    scales = random_scales(case, (1,) if "tensor" in case else (outputs, groups), generator)
    group = torch.arange(inputs) // each
    if "act-order" in case:
        group = group[torch.randperm(inputs, generator=generator)]
    zeros = draw(-top, top, (outputs, groups), generator) * ("zero points" in case)
    spread = scales.double().expand(outputs, groups)[:, group]
    numbers = spread * (levels - zeros[:, group])
    made: dict[str, Tensor] = {"weight_scale": scales}
    if "a16" in case:
        made |= {"weight_packed": pack(levels + top, bits), "weight_shape": torch.tensor([outputs, inputs])}
    else:
        made["weight"] = levels.to(torch.int8)
    if "zero points" in case:
        made["weight_zero_point"] = pack((zeros + top).T, bits).T if "a16" in case else zeros.to(torch.int8)
    if "act-order" in case:
        made["weight_g_idx"] = group.int()
    return made, numbers


# bitsandbytes.

_NF4 = (-1.0, -0.7, -0.53, -0.4, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0)
_POSITIVE = (0.0052, 0.6667, 1.0, 0.3333, 0.5, 0.1667, 0.25)
_FP4 = (0.0, *_POSITIVE, 0.0, *(-level for level in _POSITIVE))
STATE = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [128, 128]}
NESTED = {**STATE, "nested_blocksize": 48, "nested_dtype": "float32", "nested_offset": 0.0213}


def as_json(state: object) -> Tensor:
    """Return a value as bytes of JSON."""
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def llm_int8_layer(case: str, config: Config, outputs: int, inputs: int, generator: torch.Generator) -> Layer:
    levels = draw(-127, 128, (outputs, inputs), generator)
    scales = torch.rand(outputs, generator=generator) + 3.0
    scales[1] = 0.0
    made = {"weight": levels.to(torch.int8), "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return made, levels * scales.double()[:, None] / 127


def codebook_layer(case: str, config: Config, outputs: int, inputs: int, generator: torch.Generator) -> Layer:
    form, count = case[:3], outputs * inputs
    block = 3000 if "odd" in case else 64
    blocks = -(-count // block)
    levels = torch.tensor(_FP4 if form == "fp4" else _NF4)
    codes = draw(0, 16, (count,), generator).tolist()
    made, state = {"weight.quant_map": levels}, STATE
    if "nested" in case:
        state, each, offset = NESTED, int(NESTED["nested_blocksize"]), float(NESTED["nested_offset"])
        inner, inner_levels = draw(0, 256, (blocks,), generator), torch.linspace(-1, 1, 256)
        outer = torch.rand(-(-blocks // each), generator=generator) * 0.01
        made |= {"weight.absmax": inner.to(torch.uint8)}
        made |= {"weight.nested_absmax": outer, "weight.nested_quant_map": inner_levels}
        scales = [float(inner_levels[int(i)]) * float(outer[at // each]) + offset for at, i in enumerate(inner)]
    else:
        made["weight.absmax"] = torch.rand(blocks, generator=generator) * 0.05
        scales = made["weight.absmax"].tolist()
    numbers = [float(levels[code]) * scales[at // block] for at, code in enumerate(codes)]
    stored = torch.tensor([high << 4 | low for high, low in zip(codes[::2], codes[1::2], strict=True)])
    made["weight"] = stored.to(torch.uint8)[:, None]
    if "bfloat16" in case:
        made["weight"] = made["weight"].flatten().view(torch.bfloat16)[:, None]
    state = {**state, "quant_type": form, "blocksize": block, "shape": [outputs, inputs]}
    made[f"weight.quant_state.bitsandbytes__{form}"] = as_json(state)
    return made, torch.tensor(numbers, dtype=torch.float64).view(outputs, inputs)


# MLX.


def stream(rows: Tensor, bits: int) -> Tensor:
    """Pack each row's integers into one number, the first in the lowest bits, and that into words of 32 bits."""
    packed = []
    for row in rows.tolist():
        whole = sum(value << bits * i for i, value in enumerate(row))
        packed.append([whole >> 32 * word & 0xFFFFFFFF for word in range(len(row) * bits // 32)])
    return torch.tensor(packed, dtype=torch.int64).to(torch.uint32)


def mlx_layer(case: str, config: Config, outputs: int, inputs: int, generator: torch.Generator) -> Layer:
    bits, each = config["bits"], config["group_size"] or 64
    levels, group = draw(0, 1 << bits, (outputs, inputs), generator), torch.arange(inputs) // each
    if config.get("mode") == "mxfp4":
        exponents = draw(110, 130, (outputs, inputs // each), generator)
        numbers = torch.tensor(_E2M1, dtype=torch.float64)[levels] * 2.0 ** (exponents - 127)[:, group]
        return {"weight": stream(levels, bits), "scales": exponents.to(torch.uint8)}, numbers
    scales, biases = (
        (torch.randn((outputs, inputs // each), generator=generator) * 0.01).bfloat16() for _ in range(2)
    )
    numbers = scales.double()[:, group] * levels + biases.double()[:, group]
    return {"weight": stream(levels, bits), "scales": scales, "biases": biases}, numbers


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def bitsandbytes(**said: Any) -> Config:
    return {"quant_method": "bitsandbytes", **said}


CASES = {
    "awq": Case(AWQ, "Q4_1", gptq_layer),
    "gptq": Case(GPTQ, "Q4_1", gptq_layer),
    "gptq_v2": Case({**GPTQ, "checkpoint_format": "gptq_v2"}, "Q4_1", gptq_layer),
    "gptq act-order": Case({**GPTQ, "desc_act": True}, None, gptq_layer),
    "gptq in groups of 16": Case({**GPTQ, "group_size": 16}, None, gptq_layer),
    "gptq of eight bits": Case({**GPTQ, "bits": 8, "sym": True}, "Q8_0", gptq_layer),
    "gptq of eight bits, asymmetric": Case({**GPTQ, "bits": 8}, None, gptq_layer),
    "fp8 by tensor": Case(FP8, None, fp8_layer),
    "fp8 by channel": Case({**FP8, "quant_method": "fbgemm_fp8"}, None, fp8_layer),
    "fp8 in blocks": Case({**FP8, "weight_block_size": [48, 32]}, None, fp8_layer),
    "compressed fp8": Case(compressed("float-quantized", type="float", strategy="channel"), None, fp8_layer),
    "compressed fp8 in blocks": Case(
        compressed("float-quantized", strategy="block", block_structure=[48, 32]), None, fp8_layer
    ),
    "int8 by channel": Case(compressed("int-quantized", strategy="channel"), "Q8_0", integer_layer),
    "int8 by tensor": Case(compressed("naive-quantized", strategy="tensor"), "Q8_0", integer_layer),
    "int8 with zero points": Case(
        compressed("int-quantized", strategy="channel", symmetric=False), None, integer_layer
    ),
    "int8 with tiny scales": Case(compressed("int-quantized", strategy="channel"), None, integer_layer),
    "w4a16": Case(compressed("pack-quantized", num_bits=4, group_size=32), "Q4_1", integer_layer),
    "w4a16 by channel": Case(compressed("pack-quantized", num_bits=4, strategy="channel"), "Q4_1", integer_layer),
    "w4a16 with zero points": Case(
        compressed("pack-quantized", num_bits=4, group_size=64, symmetric=False), "Q4_1", integer_layer
    ),
    "w4a16 in groups of 16": Case(compressed("pack-quantized", num_bits=4, group_size=16), None, integer_layer),
    "w4a16 act-order": Case(
        compressed("pack-quantized", num_bits=4, group_size=32, actorder="group"), None, integer_layer
    ),
    "w8a16": Case(compressed("pack-quantized", num_bits=8, group_size=32), "Q8_0", integer_layer),
    "nf4": Case(bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"), None, codebook_layer),
    "fp4": Case(bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="fp4"), None, codebook_layer),
    "nf4 nested": Case(bitsandbytes(load_in_4bit=True, bnb_4bit_use_double_quant=True), None, codebook_layer),
    "nf4 in bfloat16": Case(bitsandbytes(load_in_4bit=True, bnb_4bit_quant_storage="bfloat16"), None, codebook_layer),
    "nf4 in odd blocks": Case(bitsandbytes(load_in_4bit=True), None, codebook_layer),
    "llm.int8": Case(bitsandbytes(load_in_8bit=True), "Q8_0", llm_int8_layer),
    **{
        f"mlx of {bits} bits": Case({"bits": bits, "group_size": group}, "Q4_1" if bits <= 4 else None, mlx_layer)
        for bits, group in ((2, 32), (3, 64), (4, None), (5, 64), (6, 32), (8, 64))
    },
    "mlx of exponents": Case({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "MXFP4", mlx_layer),
}


def write(path: Path, case: str, mlp: str | None = None, family: str | None = None) -> dict[str, Tensor]:
    """Write a model, of another family than Llama, with such layers, compressed ones of another case in MLPs.

    Returns:
        What the layers' numbers are, in float64, by the names that plain matrices have.
    """
    if family is None:
        write_llama(path, **WIDE)
    else:
        write_family(path, family, **WIDE)
    file, config = path / "model.safetensors", CASES[case].config
    tensors, numbers = load_file(file), {}
    for seed, name in enumerate([name for name in tensors if "_proj.weight" in name]):
        own, generator = mlp if mlp and ".mlp." in name else case, torch.Generator().manual_seed(seed)
        shape = tensors.pop(name).shape
        made, numbers[name] = CASES[own].make(own, CASES[own].config, shape[0], shape[1], generator)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": x.contiguous() for part, x in made.items()}
    save_file(tensors, file, {"format": "pt"})
    if mlp is not None:
        both = [CASES[one].config for one in (case, mlp)]
        groups = [{**one["config_groups"]["group_0"], "format": one["format"]} for one in both]
        config = {**config, "format": "mixed-precision", "config_groups": {"a": groups[0], "b": groups[1]}}
    set_config(path, config)
    return numbers


def set_config(path: Path, config: Config) -> None:
    """Have a model's config say something else of its quantisation."""
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))


def alter(path: Path, **tensors: Tensor | None) -> dict[str, Tensor]:
    """Replace parts of `QUERIES`, None leaving one out; returns all tensors that there are then."""
    file = path / "model.safetensors"
    named = {f"{QUERIES}.{part}": tensor for part, tensor in tensors.items()}
    found = {name: tensor for name, tensor in {**load_file(file), **named}.items() if tensor is not None}
    save_file(found, file)
    return found
