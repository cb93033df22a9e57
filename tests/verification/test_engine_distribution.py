"""The distribution of what a speculating engine emits, against the exact distribution of its target."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import write_llama
from conftest import MakeLLM
from numpy.typing import NDArray
from scipy.stats import chisquare

from parlay import LLM, SamplingParams
from parlay.runner.batch import Segment, flatten

VOCAB = 32
SEEDS = 1500
PROMPT = (8, 24, 30, 8, 24, 30, 8, 24)  # which this target continues with 30, 8 in one case of ten
CASES = [
    ("ngram", {"temperature": 1.0}),
    ("ngram", {"temperature": 0.7, "top_p": 0.8}),
    ("draft_model", {"temperature": 1.0}),
    ("draft_model", {"temperature": 1.5, "top_k": 6}),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("small")
    shape = {"seed": 4, "vocab_size": VOCAB, "eos_token_id": None, "num_hidden_layers": 2, "calm": 0.3}
    return write_llama(path / "target", **shape), write_llama(path / "draft", noise=0.1, **shape)


def joint_distribution(llm: LLM, params: dict[str, Any]) -> NDArray[np.float64]:
    """Return the exact distribution of the first two tokens, `[vocab, vocab]`, in double precision."""
    runner = llm.engine._worker._runner
    prompts = [PROMPT, *((*PROMPT, token) for token in range(VOCAB))]
    rows = []
    for prompt in prompts:
        batch = flatten([Segment(prompt, 0, (0, 1))], runner.block_size)
        rows.append(runner.logits(runner.forward(batch), [len(prompt) - 1])[0])
    probabilities = [probabilities_of(row.double(), **params) for row in rows]
    return probabilities[0][:, None] * np.array(probabilities[1:])


def probabilities_of(
    logits: torch.Tensor, temperature: float, top_k: int = VOCAB, top_p: float = 1.0
) -> NDArray[np.float64]:
    p = torch.softmax(logits / temperature, dim=-1).numpy()
    order = np.argsort(-p)
    kept = order[:top_k]
    if top_p < 1:
        kept = order[: int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1]
    result = np.zeros(VOCAB)
    result[kept] = p[kept] / p[kept].sum()
    return result


def p_value(counts: Counter[tuple[int, int]], distribution: NDArray[np.float64]) -> float:
    """Chi-square of counts against a distribution, with all rare cells merged into one."""
    total = sum(counts.values())
    cells = list(itertools.product(range(VOCAB), repeat=2))
    expected = {cell: total * distribution[cell] for cell in cells}
    assert all(counts[cell] == 0 for cell in cells if expected[cell] == 0), (
        "a token outside the distribution's support"
    )
    common = [cell for cell in cells if expected[cell] >= 5]
    seen, wanted = [counts[c] for c in common], [expected[c] for c in common]
    if (rest := total - sum(wanted)) > 1e-6:
        seen.append(total - sum(seen))
        wanted.append(rest)
    assert len(wanted) > 10
    return float(chisquare(seen, np.array(wanted) * (sum(seen) / sum(wanted)))[1])


@pytest.mark.parametrize(("method", "params"), CASES, ids=str)
def test_the_first_two_tokens(
    make_llm: MakeLLM, small: tuple[Path, Path], method: str, params: dict[str, Any]
) -> None:
    target, draft = small
    own = {"ngram": {"prompt_lookup_min": 1}, "draft_model": {"model": str(draft)}}[method]
    llm = make_llm(
        model=str(target),
        speculative_config={"method": method, "num_speculative_tokens": 2, **own},
        max_model_len=32,
        max_num_seqs=200,
        max_num_batched_tokens=2048,
    )
    distribution = joint_distribution(llm, params)
    asks = [SamplingParams(max_tokens=3, seed=seed * 7919, **params) for seed in range(SEEDS)]
    outputs = llm.generate([PROMPT] * SEEDS, asks, use_tqdm=False)
    # The distribution mixes both ways: some of these tokens were drafted, some were not.
    drafted = sum(method in output.outputs[0].sources[:2] for output in outputs)
    assert SEEDS / 20 < drafted < SEEDS - SEEDS / 20
    counts = Counter(output.outputs[0].token_ids[:2] for output in outputs)
    assert p_value(counts, distribution) > 1e-3
    if params == {"temperature": 1.0}:
        assert p_value(counts, joint_distribution(llm, {"temperature": 1.25})) < 1e-6, "a little off is seen"
