"""Every family out of a GGUF file: the bits of the same weights in safetensors."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import write_family
from gguf_families import VARIANTS, convert
from gguf_files import write_dequantised
from torch import Tensor

from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.batch import Stretch, flatten
from parlay.runner.runner import ModelRunner

TOKENS = torch.randint(0, 257, (40,), generator=torch.Generator().manual_seed(5)).tolist()


def logits(path: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    kernels = select_kernels()
    runner = ModelRunner(load_model(describe_model(str(path)), dtype, 256, kernels), kernels, 16, 16)
    hidden = runner.forward(flatten([Stretch(TOKENS, 0, tuple(range(16)))], runner.block_size))
    return runner.logits(hidden, range(len(TOKENS))).clone()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root, found = tmp_path_factory.mktemp("families"), {}
    for name, changes in VARIANTS.items():
        found[name] = write_family(root / name, name, **changes)
    return found


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16", "Q8_0"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_safetensors(models: dict[str, Path], variant: str, kind: str, tmp_path: Path) -> None:
    values = convert(models[variant], tmp_path / "model.gguf", kind)
    same = write_dequantised(models[variant], tmp_path / "same", values, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        expected = logits(same, dtype)
        assert expected.std() > 1e-2
        assert torch.equal(logits(tmp_path / "model.gguf", dtype), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_config_says_what_the_directorys_does(models: dict[str, Path], variant: str, tmp_path: Path) -> None:
    convert(models[variant], tmp_path / "model.gguf")
    ours, theirs = describe_model(str(tmp_path / "model.gguf")), describe_model(str(models[variant]))
    if variant == "mistral-unlimited":  # which files call a Llama, and it is one
        theirs = replace(theirs, architecture="LlamaForCausalLM")
    assert replace(ours, path=theirs.path, raw=theirs.raw) == theirs
