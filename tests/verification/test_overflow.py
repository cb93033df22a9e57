"""Tokens of a model whose activations overflow mean nothing: its requests fail."""

from math import inf, nan
from pathlib import Path

import pytest
import torch
from checkpoints import write_llama
from safetensors.torch import load_file, save_file

from parlay import LLM, EngineFaultError, SamplingParams
from parlay.types.draft import Draft
from parlay.types.params import DrawParams
from parlay.types.plan import Span, Verdict
from parlay.verification.overflow import refuse_overflow


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1, "seed": 3}, {"temperature": 0.5, "top_k": 2}]
)
@pytest.mark.parametrize("tensor", ["model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_are_too_large(tmp_path: Path, tensor: str, params: dict[str, float]) -> None:
    file = write_llama(tmp_path / "model") / "model.safetensors"
    weights = load_file(file)
    weights[tensor] *= 1e36
    save_file(weights, file, metadata={"format": "pt"})
    llm = LLM(str(file.parent))
    with pytest.raises(EngineFaultError, match="activations overflow"):
        llm.generate([5, 6, 7, 8], SamplingParams(max_tokens=4, **params))
    assert llm.engine.snapshot().blocks_used == 0


def span(start: int, tokens: int, nodes: int = 0) -> Span:
    draft = Draft.chain([0] * nodes, "ngram")
    return Span(1, (3,) * tokens, start, (0,), 0, DrawParams(), draft, sample=True)


GOOD, MASKED = [0.0, 1.0, -inf, nan], [2.0, -inf, -inf, -inf]


@pytest.mark.parametrize("row", [[1.0] * 4, [nan] * 4, [-inf] * 4, [0.0, inf, 0.0, 1.0], [nan, 2.0, inf, inf]])
def test_rows_that_decide_nothing(row: list[float]) -> None:
    token, later = Verdict((1,), logprobs=()), Verdict((0, 0), (0,))
    spans = [span(0, 4), span(9, 1), span(4, 1, 1), span(9, 1)]
    logits = torch.tensor([row, row, GOOD, row, MASKED])
    verdicts = refuse_overflow(spans, logits, [token, token, later, Verdict((0,))])
    assert [one.error is None for one in verdicts] == [False, True, False, True]
    assert [one.tokens for one in verdicts] == [(), (1,), (), (0,)]
    assert (verdicts[0].logprobs, verdicts[2].logprobs) == ((), None)
