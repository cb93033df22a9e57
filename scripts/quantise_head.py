"""Store a draft head's matrices in eight or four bits: `python scripts/quantise_head.py HEAD OUTPUT [--bits 4]`.

Format: compressed-tensors. Eight bits are `int-quantized`: `weight` int8 [outputs, inputs] and `weight_scale`
[outputs, 1]. Four are `pack-quantized`: `weight_packed` int32 [outputs, inputs / 8] and a scale for 32 inputs.
A smaller head is read in less time. It changes how many draft tokens are accepted, and none of the target's tokens.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 32  # inputs that share a scale of four bits, and the kernels' blocks; other matrices stay as they are
PER_WORD = 8
FACTORS = [1.0, *(percent / 100 for percent in range(70, 122, 2))]


def in_eight_bits(weight: Tensor) -> dict[str, Tensor]:
    """Return a matrix `[outputs, inputs]` with one scale for each output, whose largest number becomes 127."""
    scale = (weight.float().abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return {"weight": (weight.float() / scale).round().to(torch.int8), "weight_scale": scale}


def in_four_bits(weight: Tensor) -> dict[str, Tensor]:
    """Return a matrix `[outputs, inputs]` with one scale for each group: that of the least sum of squared errors.

    The scales tried begin with the one that makes a group's number furthest from 0 the level -8.
    """
    outputs, inputs = weight.shape
    groups = weight.float().reshape(outputs, -1, GROUP)
    furthest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    least, scale, levels = torch.full_like(furthest, torch.inf), torch.ones_like(furthest), torch.zeros_like(groups)
    for factor in FACTORS:
        own = (factor * furthest / -8).half().float()
        own[own == 0] = 1
        rounded = (groups / own).round().clamp(-8, 7)
        error = (rounded * own - groups).square().sum(2, keepdim=True)
        better = error < least
        least, scale = torch.where(better, error, least), torch.where(better, own, scale)
        levels = torch.where(better, rounded, levels)
    nibbles = levels.to(torch.int32).reshape(outputs, -1, PER_WORD) + 8
    words = (nibbles << torch.arange(0, 32, 4, dtype=torch.int32)).sum(2, dtype=torch.int32)
    return {
        "weight_packed": words,
        "weight_scale": scale.half().reshape(outputs, -1),
        "weight_shape": torch.tensor([outputs, inputs]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head", type=Path, help="a directory with config.json and one safetensors file")
    parser.add_argument("output", type=Path, help="the directory to write; may be the same")
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8, help="of a number (default: 8)")
    options = parser.parse_args()

    (source,) = options.head.glob("*.safetensors")
    config = json.loads((options.head / "config.json").read_text())
    convert = in_eight_bits if options.bits == 8 else in_four_bits
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(source).items():
        if tensor.dim() == 2 and tensor.is_floating_point() and tensor.shape[1] % GROUP == 0:
            tensors |= {name.removesuffix("weight") + part: own for part, own in convert(tensor).items()}
        else:
            tensors[name] = tensor
    scheme: dict[str, Any] = {"num_bits": options.bits, "type": "int", "symmetric": True, "dynamic": False}
    scheme |= {"strategy": "channel"} if options.bits == 8 else {"strategy": "group", "group_size": GROUP}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if options.bits == 8 else "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}},
    }
    options.output.mkdir(parents=True, exist_ok=True)
    save_file(tensors, options.output / source.name, metadata={"format": "pt"})
    (options.output / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
