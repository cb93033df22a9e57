"""A tiny model and every method end to end: tokens are those of the processor's kernels, but for rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from conftest import MakeLLM
from tagged_device import TaggedKernels

from parlay import LLM, SamplingParams
from parlay.engine import load, resolve
from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.kernels.triton.kernels import TritonKernels
from parlay.proposers.select import proposers

from .test_triton_elementwise import LONG

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [20, 21, 22, 20, 21, 22, 20, 21]]
PARAMS = [SamplingParams(temperature=0.0, max_tokens=6), SamplingParams(temperature=0.8, seed=3, max_tokens=6)]


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> dict[str, Any]:
    def select(name: str, longest: int) -> Kernels:
        host = select_kernels("cpu")
        return TritonKernels(device, host, longest) if name == "cuda" else host

    monkeypatch.setattr(load, "select_kernels", select)
    monkeypatch.setattr(resolve, "find_device", lambda name: None)
    monkeypatch.setattr(resolve, "available_memory", lambda name: 1 << 33)
    monkeypatch.setattr(load, "cases", lambda *model: [])  # the self-check takes long in the interpreter
    return {"device": "cuda"}


def check(
    make_llm: MakeLLM,
    on_triton: dict[str, Any],
    method: str,
    drafted: int,
    prompts: list[list[int]],
    params: list[SamplingParams],
) -> None:
    expected = make_llm(None).generate(prompts, params)
    found = make_llm(method, drafted, **on_triton).generate(prompts, params)
    assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in expected]


def test_briefly(make_llm: MakeLLM, on_triton: dict[str, Any]) -> None:
    """With a head, which reads states and drafts on the GPU; a text's end has no draft any more."""
    params = [SamplingParams(temperature=0.8, seed=3, max_tokens=3)]
    check(make_llm, on_triton, "eagle3", 2, [PROMPTS[1][:5]], params)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's: rows that pad a pass see no keys, and divide 0 by 0
@pytest.mark.parametrize(
    "method", ["medusa", *(pytest.param(name, marks=LONG) for name in ("eagle3", "draft_model"))]
)
def test_drafts_behind_a_verdict_on_the_device(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, on_triton: dict[str, Any], method: str
) -> None:
    """As on a GPU, where the host's memory is another: one copy there and one back, and Triton's kernels between."""
    host = select_kernels("cpu")
    tagged = TaggedKernels(TritonKernels(torch.device("cpu"), host, 128))
    monkeypatch.setattr(load, "select_kernels", lambda name, longest: tagged if name == "cuda" else host)
    params = [SamplingParams(temperature=0.8, seed=3, max_tokens=4)]
    check(make_llm, on_triton, method, 2, [PROMPTS[1][:5]], params)


@pytest.mark.parametrize("dtype", [pytest.param("int8", marks=LONG)])
def test_a_cache_in_eight_bits(on_triton: dict[str, Any], tmp_path: Path, dtype: str) -> None:
    path = str(write_llama(tmp_path / "model", seed=2, scale=7.0, calm=0.2, head_dim=32))
    options: dict[str, Any] = {"max_model_len": 128, "kv_cache_dtype": dtype}
    spec = {"method": "ngram", "lengths": "fixed", "num_speculative_tokens": 3}
    found = [
        LLM(path, speculative_config=config, **options, **more).generate(PROMPTS, PARAMS)
        for config, more in ((None, {}), (None, on_triton), (spec, on_triton))
    ]
    expected, *others = [[one.outputs[0].token_ids for one in answers] for answers in found]
    assert others == [expected, expected]


@pytest.mark.parametrize("method", [pytest.param(name, marks=LONG) for name in sorted(proposers.names())])
def test_every_method(make_llm: MakeLLM, on_triton: dict[str, Any], method: str) -> None:
    check(make_llm, on_triton, method, 3, PROMPTS, PARAMS)
