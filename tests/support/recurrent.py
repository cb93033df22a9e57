"""What tests of models with recurrent layers ask, and what each request gets alone."""

from pathlib import Path
from typing import Any

from asking import Ask, run
from blocks import block_config, random_block
from eagles import eagle_config, random_eagle, random_eagle3
from heads import write_head
from pieces import random_tokens

from parlay import LLM, CompletionOutput, SamplingParams

FAMILIES = ("qwen3_5", "qwen3_5moe", "lfm2", "lfm3", "granite4-h", "nemotronh-experts", "falconh1", "kimilinear")


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


def write_random_head(path: Path, method: str) -> Path:
    """Write a head of EAGLE, EAGLE-3 or DFlash for a family's target."""
    if method == "eagle":
        config = eagle_config()
        return write_head(path, config, random_eagle(config, seed=1, embedding=True))
    if method == "dflash":
        config = block_config(block_size=4)
        return write_head(path, config, random_block(config))
    config = eagle_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    tensors = random_eagle3(config)
    tensors["embed_tokens.weight"] = random_eagle(config, embedding=True)["embed_tokens.weight"]
    return write_head(path, config, tensors)
