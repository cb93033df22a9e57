"""Files for MLX: quantised as it does, and experts as it stacks them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_config, read_config, write_llama
from families import write_family
from pieces import logits_in_pieces, make_runner, random_tokens
from safetensors.torch import load_file, save_file
from stored_layers import CASES, QUERIES, WIDE, alter, mlx_layer, set_config, write
from torch import Tensor

from parlay import ModelError
from parlay.checkpoints.loader import Checkpoint
from parlay.models.export.gguf import export
from parlay.models.select import stored_kinds

GOLDENS = Path(__file__).parents[1] / "goldens" / "mlx"
EIGHT = {"group_size": 64, "bits": 8}
LENGTH = 24


def logits(path: Path) -> Tensor:
    return logits_in_pieces(make_runner(path, length=LENGTH), random_tokens(LENGTH), [LENGTH])


def test_numbers_are_those_of_mlx(tmp_path: Path) -> None:
    tensors = load_file(GOLDENS / "model.safetensors")
    expected = {name: tensors.pop(name) for name in list(tensors) if name.startswith("expected.")}
    save_file(tensors, tmp_path / "model.safetensors")
    config: dict[str, Any] = {"group_size": 64, "bits": 4}
    for name in expected:
        mode, bits, group = name.removeprefix("expected.").split("_")
        config[name.removeprefix("expected.")] = {"group_size": int(group), "bits": int(bits), "mode": mode}
    (tmp_path / "config.json").write_text(json.dumps({"quantization": config}))
    assert len(expected) == 19
    with Checkpoint(tmp_path, storage="stored") as weights:
        for name, numbers in expected.items():
            own = f"{name.removeprefix('expected.')}.weight"
            assert torch.equal(weights.read(own), numbers)
            kind = weights.kind(own)
            assert str(kind) == ("MXFP4" if "mxfp4" in own else "Q4_1" if int(own.split("_")[1]) <= 4 else "None")
            if kind:  # whose scales are float16: MLX's of bfloat16 fit, apart from the smallest
                assert torch.allclose(weights.read_weight(own, torch.float32).numbers(), numbers, rtol=0, atol=1e-6)


def test_older_files_have_a_key_of_their_own_alone(tmp_path: Path) -> None:
    write(tmp_path, "mlx of 4 bits")
    expected = logits(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    edit_config(tmp_path, "quantization_config", quantization=said)
    assert torch.equal(logits(tmp_path), expected)
    assert {str(kind) for kind in stored_kinds(read_config(tmp_path)).values()} == {"Q4_1"}


def test_layers_that_the_config_names(tmp_path: Path) -> None:
    write(tmp_path, "mlx of 4 bits")
    layer, numbers = mlx_layer("", EIGHT, 128, 128, torch.Generator().manual_seed(7))
    alter(tmp_path, **layer)
    set_config(tmp_path, {**CASES["mlx of 4 bits"].config, QUERIES: EIGHT, "model.embed_tokens": False})
    with Checkpoint(tmp_path) as weights:
        assert torch.equal(weights.read(f"{QUERIES}.weight"), numbers.float())


def _stack(path: Path, *, named: str, module: str) -> None:
    """Stack a model's experts as mlx-lm does."""
    file = path / "model.safetensors"
    stacks: dict[str, list[Tensor]] = {}
    words = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    tensors = load_file(file)
    for name in sorted(
        (n for n in tensors if ".experts." in n), key=lambda n: int(n.split(f"{named}.")[1].split(".")[0])
    ):
        layer, rest = name.split(f".{named}.")
        _, matrix, *part = rest.split(".")
        stacks.setdefault(".".join([layer, module, words.get(matrix, matrix), *part]), []).append(tensors.pop(name))
    save_file({**tensors, **{name: torch.stack(own) for name, own in stacks.items()}}, file, {"format": "mlx"})


@pytest.mark.parametrize(
    ("family", "named", "module"),
    [
        ("qwen3moe", "mlp.experts", "mlp.switch_mlp"),
        ("mixtral", "block_sparse_moe.experts", "block_sparse_moe.switch_mlp"),
    ],
)
@pytest.mark.parametrize("case", [None, "mlx of 4 bits", "mlx of 8 bits", "mlx of exponents"])
def test_stacks_of_experts(tmp_path: Path, family: str, named: str, module: str, case: str | None) -> None:
    write_family(tmp_path, family, **WIDE, **({"moe_intermediate_size": 64} if family == "qwen3moe" else {}))
    if case is not None:
        file, made = tmp_path / "model.safetensors", dict[str, Tensor]()
        for seed, (name, tensor) in enumerate(load_file(file).items()):
            if ".experts." not in name:
                made[name] = tensor
                continue
            outputs, inputs = tensor.shape
            layer, _ = mlx_layer(case, CASES[case].config, outputs, inputs, torch.Generator().manual_seed(seed))
            made |= {f"{name.removesuffix('.weight')}.{part}": x for part, x in layer.items()}
        save_file(made, file)
        set_config(tmp_path, CASES[case].config)
    expected = logits(tmp_path)
    _stack(tmp_path, named=named, module=module)
    assert torch.equal(logits(tmp_path), expected)


def test_stacks_of_experts_with_biases(tmp_path: Path) -> None:
    """gpt-oss: in its own files, inputs come before outputs, and gates' outputs take turns with others."""
    expected = logits(write_family(tmp_path, "gptoss"))
    file = tmp_path / "model.safetensors"
    made = dict[str, Tensor]()
    for name, tensor in load_file(file).items():
        base, _, matrix = name.partition(".experts.")
        if not matrix:
            made[name] = tensor
            continue
        part = "bias" if matrix.endswith("_bias") else "weight"
        rows = tensor if part == "bias" else tensor.transpose(1, 2)
        halves = {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]} if "gate_up" in matrix else {"down_proj": rows}
        made |= {f"{base}.experts.{own}.{part}": half.contiguous() for own, half in halves.items()}
    save_file(made, file, {"format": "mlx"})
    assert torch.equal(logits(tmp_path), expected)


def _for_mlx(path: Path, shifted: tuple[str, ...]) -> None:
    """Have convolutions and norms as MLX has them."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if tensor.dim() == 3:
            tensors[name] = tensor.transpose(1, 2).contiguous()
        elif name.endswith(shifted):
            tensors[name] = tensor + 1
    save_file(tensors, file, {"format": "mlx"})


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5moe", "qwen3next", "lfm2", "olmohybrid"])
def test_recurrent_layers(tmp_path: Path, family: str) -> None:
    write_family(tmp_path, family)
    file = tmp_path / "model.safetensors"
    # Norms whose sum with one is exact.
    save_file({name: x.bfloat16().float() if x.dim() == 1 else x for name, x in load_file(file).items()}, file)
    expected = logits(tmp_path)
    norms = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
    _for_mlx(tmp_path, norms if family.startswith("qwen") else ("no norm",))
    torch.testing.assert_close(logits(tmp_path), expected, atol=1e-5, rtol=0)


def test_gguf_files_of_shifted_norms(tmp_path: Path) -> None:
    """They hold sums too, so that nothing is added."""
    path = write_family(tmp_path / "model", "qwen3_5", linear_key_head_dim=16)
    original = logits(export(path, tmp_path / "original.gguf", "f16").path)
    _for_mlx(path, ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight"))
    assert torch.equal(logits(export(path, tmp_path / "mlx.gguf", "f16").path), original)


def test_recurrent_layers_that_mlx_stores_otherwise(tmp_path: Path) -> None:
    """Falcon-H1's multipliers are in its weights then."""
    _for_mlx(write_family(tmp_path, "falconh1"), ("no norm",))
    with pytest.raises(ModelError, match="written for MLX, which stores such recurrent layers in its own way"):
        logits(tmp_path)


DAMAGE: list[tuple[dict[str, Tensor | None], str]] = [
    ({"biases": None}, f"lacks {QUERIES}.biases"),
    ({"weight": None}, f"lacks {QUERIES}.weight"),
    ({"scales": None, "biases": None}, "stored as U32 but lacks the scales"),
    ({"weight": torch.zeros(128, 16)}, "stored as 'F32', not as U32"),
    ({"scales": torch.zeros(128, 2, dtype=torch.uint8)}, "stored as 'U8', not as F16 or BF16 or F32"),
    ({"scales": torch.ones(128, 4)}, r"\[128, 16\], which cannot be 256 inputs of 4 bits"),
    ({"scales": torch.ones(64, 2)}, r"\[64, 2\], which cannot be scales of a matrix whose words are \[128, 16\]"),
    ({"biases": torch.ones(128, 1)}, r"\[128, 1\], which cannot be biases beside scales \[128, 2\]"),
    ({"scales": torch.full((128, 2), torch.inf)}, "infinite or not numbers"),
]


@pytest.mark.parametrize(("tensors", "message"), DAMAGE, ids=[str(i) for i in range(len(DAMAGE))])
def test_damage(tmp_path: Path, tensors: dict[str, Tensor | None], message: str) -> None:
    write(tmp_path, "mlx of 4 bits")
    alter(tmp_path, **tensors)
    with pytest.raises(ModelError, match=message):
        logits(tmp_path)


def test_stacks_that_are_none(tmp_path: Path) -> None:
    write(tmp_path, "mlx of 4 bits")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {
        f"model.layers.0.mlp.switch_mlp.up_proj.{part}": tensors[f"{QUERIES}.{part}"].clone()
        for part in ("weight", "scales", "biases")
    }
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"cannot be a stack of experts, \[experts, outputs, words\]"):
        logits(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"group_size": 64, "bits": 7}, "bits=7; MLX's affine is supported with bits=2 or 3 or 4 or 5 or 6 or 8"),
        ({"group_size": 16, "bits": 4}, "group_size=16; MLX's affine is supported with group_size=32 or 64 or 128"),
        ({"group_size": 64, "bits": 4, "mode": "mxfp4"}, "MLX's mxfp4 is supported with group_size=32"),
        ({"group_size": 16, "bits": 4, "mode": "nvfp4"}, "with mode=affine or mxfp4, not 'nvfp4'"),
        ({"group_size": 64, "bits": 4, QUERIES: {"bits": True}}, "bits=True; MLX's affine"),
    ],
)
def test_what_is_not_supported(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    edit_config(write_llama(tmp_path), quantization=config)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)
