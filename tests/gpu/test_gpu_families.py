"""On a GPU: families of every kind have transformers' tokens, and the same ones in any company and with drafts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, run, with_params
from families import reference, write_family
from mtp_layers import MODELS, write_mtp
from recurrent import asks

from parlay import LLM, SamplingParams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

# Attention with windows, sinks, caps, shared and latent keys; experts; the three kinds of recurrent layers.
FAMILIES = (
    *("gemma3", "gptoss", "gemma2", "gemma4-inputs", "glm4moelite", "glm4moe", "qwen3moe"),
    *("qwen3_5", "qwen3next", "kimilinear", "granite4-h-experts", "falconh1", "nemotronh-experts", "lfm2"),
    *("graniteswa", "afmoe", "laguna-heads", "lfm3", "mimov2flash", "step3p5"),
)
CLEAR = 1e-2  # difference of the two highest logits beyond which sums in another order choose the same


@pytest.fixture
def path(tmp_path: Path, name: str) -> Path:
    make = write_mtp if name in MODELS else write_family
    return make(tmp_path / name, name, seed=2, calm=0.3)


def engine(path: Path, method: str | None = None, **options: Any) -> LLM:
    config = method and {"method": method, "lengths": "fixed", "num_speculative_tokens": 3}
    return LLM(str(path), device="cuda", max_model_len=256, speculative_config=config, **options)


def tokens(llm: LLM, asked: list[Ask], *, alone: bool = False) -> list[tuple[int, ...]]:
    groups = [[ask] for ask in asked] if alone else [asked]
    found = [tuple(one.token_ids) for group in groups for one in run(llm, group)]
    llm.engine.close()
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_chooses_these_tokens(path: Path) -> None:
    asked = [Ask(ask.prompt, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)) for ask in asks()[::2]]
    for ask, found in zip(asked, tokens(engine(path, dtype="float32"), asked), strict=True):
        logits = reference(path, [*ask.prompt, *found])[len(ask.prompt) - 1 : -1]
        for row, token in zip(logits, found, strict=True):
            best = row.topk(2)
            assert token == int(best.indices[0]) or float(row.max() - row[token]) < CLEAR


@pytest.mark.parametrize("name", FAMILIES)
def test_same_tokens(path: Path, name: str) -> None:
    asked = [with_params(ask, logprobs=None) for ask in asks()]
    expected = tokens(engine(path, dtype="bfloat16", enable_prefix_caching=False), asked, alone=True)
    for method in (None, "ngram", *(("mtp",) if name in MODELS else ())):
        assert tokens(engine(path, method, dtype="bfloat16"), asked) == expected
    few = {"max_num_batched_tokens": 16, "num_blocks": 40}
    assert tokens(engine(path, "ngram", dtype="bfloat16", **few), asked) == expected
