"""gpt-oss's experts as they are published, against what transformers makes of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import reference, write_family
from pieces import logits_in_pieces, make_runner, random_tokens
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from parlay import ModelError
from parlay.models.select import check_weights, describe_model
from parlay.models.stored import open_weights

STACKS = ("gate_up_proj", "down_proj")
Change = Callable[[dict[str, Tensor]], object]


def write(path: Path, change: Change = lambda tensors: None) -> Path:
    """A checkpoint of random blocks; beside it, in `plain`, the same dequantised."""
    write_family(path, "gptoss")
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    plain = dict(tensors)
    for name in [name for name in tensors if name.endswith(STACKS)]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator).byte()
        scales = torch.randint(119, 125, shape, generator=generator).byte()
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    change(tensors)
    config = json.loads((path / "config.json").read_text())
    (path / "plain").mkdir()
    (path / "plain" / "config.json").write_text(json.dumps(config))
    save_file(plain, path / "plain" / "model.safetensors", {"format": "pt"})
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    return path


def test_as_transformers_reads_them(tmp_path: Path) -> None:
    path, tokens = write(tmp_path), random_tokens()
    expected = reference(path / "plain", tokens)
    dequantised = logits_in_pieces(make_runner(path, storage="plain"), tokens, [])
    torch.testing.assert_close(dequantised, expected, atol=2e-4, rtol=1e-4)
    with (
        open_weights(describe_model(str(path)), storage="stored") as stored,
        open_weights(describe_model(str(path / "plain"))) as plain,
    ):
        for name in ("experts.0.gate_proj", "experts.3.up_proj", "experts.5.down_proj"):
            weight = stored.read_weight(f"model.layers.1.mlp.{name}.weight", torch.float32)
            assert [str(part.kind) for part in weight.parts] == ["MXFP4"]
            assert torch.equal(weight.numbers(), plain.read(f"model.layers.1.mlp.{name}.weight"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_give_the_same_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    path, tokens = write(tmp_path), random_tokens(seed=1)
    runner = make_runner(path, dtype, storage="stored")
    whole = logits_in_pieces(runner, tokens, [])
    assert torch.equal(logits_in_pieces(runner, tokens, [1, 2, 30, 47]), whole)
    plain = logits_in_pieces(make_runner(path, dtype, storage="plain"), tokens, [])
    assert (whole - plain).std() < 0.15 * plain.std()  # eight bits for each activation


def first(tensors: dict[str, Tensor], part: str) -> str:
    return f"model.layers.0.mlp.experts.{part}"


CHANGES: dict[str, tuple[Change, str]] = {
    "no scales": (lambda t: t.pop(first(t, "down_proj_scales")), "lacks .*down_proj_scales"),
    "other scales": (
        lambda t: t.update({first(t, "down_proj_scales"): t[first(t, "down_proj_scales")][:, :-1].clone()}),
        "down_proj_scales has shape",
    ),
    "fewer experts": (
        lambda t: t.update(
            {n: t[n][:-1].clone() for n in t if "layers.0" in n and n.endswith(("_blocks", "_scales"))}
        ),
        "lacks the tensor .*experts.5",
    ),
    "fewer biases": (
        lambda t: t.update({first(t, "down_proj_bias"): t[first(t, "down_proj_bias")][:-1].clone()}),
        "down_proj_bias.* has shape .* there are 6 experts",
    ),
    "floats": (
        lambda t: t.update({first(t, "down_proj_blocks"): t[first(t, "down_proj_blocks")].float()}),
        "down_proj_blocks is stored as 'F32'",
    ),
    "sinks": (
        lambda t: t.update({"model.layers.0.self_attn.sinks": torch.zeros(3)}),
        r"sinks' has shape \[3\], but the config says \[4\]",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    path = write(tmp_path, change)
    with pytest.raises(ModelError, match=message):
        check_weights(describe_model(str(path)))


def test_a_scale_out_of_range(tmp_path: Path) -> None:
    path = write(tmp_path, lambda t: t[first(t, "down_proj_scales")].fill_(255))
    with pytest.raises(ModelError, match=r"experts.0.down_proj.weight' holds values that are infinite"):
        make_runner(path, storage="stored")
