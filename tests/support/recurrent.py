"""What tests of models with recurrent layers ask, and what each request gets alone."""

from pathlib import Path
from typing import Any

from asking import Ask, run
from pieces import random_tokens

from parlay import LLM, CompletionOutput, SamplingParams


def asks(period: int = 7, repeats: int = 2, length: int = 20) -> list[Ask]:
    """Prompts that repeat a few tokens, none of one length, each greedily and not."""
    given: dict[str, Any] = {"max_tokens": length, "logprobs": 1, "ignore_eos": True}
    return [
        Ask(
            tuple(random_tokens(period, seed)) * (repeats * seed + 1),
            SamplingParams(temperature=t, seed=seed, **given),
        )
        for seed in range(4)
        for t in (0.0, 0.8)
    ]


def alone(path: Path, given: list[Ask], dtype: str = "float32") -> list[CompletionOutput]:
    """Return what each request gets without speculation, cache, chunks or company."""
    llm = LLM(str(path), dtype=dtype, max_model_len=256, enable_prefix_caching=False, speculative_config=None)
    return [completion for ask in given for completion in run(llm, [ask])]
