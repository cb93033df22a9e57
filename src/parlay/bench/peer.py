"""Plain parlay against transformers' `generate`, interleaved, on the embedded model."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from parlay import env
from parlay.bench.protocol import TOKENS, Prefix, load_prefixes, params_for
from parlay.errors import ConfigError
from parlay.llm import LLM
from parlay.models.select import find_model


def measure(batch_sizes: tuple[int, ...], prefixes: int, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return one row a batch size: greedy, bfloat16, 32 tokens after each 128-token prefix, prompts included.

    Args:
        batch_sizes: how many prefixes run at once.
        prefixes: how many prefixes to complete for each batch size.
        tick: called with a label before every round.

    Raises:
        ConfigError: transformers is not installed.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise ConfigError("this comparison needs transformers; pip install 'parlay[test]'") from None
    llm = LLM(enable_prefix_caching=False)
    # Its own default is evaluation mode already.
    peer = AutoModelForCausalLM.from_pretrained(find_model("tiny-code"), dtype=torch.bfloat16)
    torch.set_num_threads(env.threads())
    chosen = load_prefixes(prefixes)
    rows = []
    for batch_size in batch_sizes:
        batches = [chosen[i : i + batch_size] for i in range(0, len(chosen), batch_size)]
        ours: list[float] = []
        theirs: list[float] = []
        equal = total = 0
        for i, batch in enumerate([batches[0], *batches]):
            tick(f"batch {batch_size}: round {i} of {len(batches)}")
            began = perf_counter()
            mine = _parlay(llm, batch)
            middle = perf_counter()
            other = _transformers(peer, batch)
            if i == 0:
                continue  # warm-up
            ours.append(middle - began)
            theirs.append(perf_counter() - middle)
            equal += sum(a == b for a, b in zip(mine, other, strict=True))
            total += len(batch)
        tokens = TOKENS * batch_size
        rows.append(
            {
                "batch": batch_size,
                "parlay_tokens_per_s": tokens / median(ours),
                "transformers_tokens_per_s": tokens / median(theirs),
                "speed_up": median(t / o for o, t in zip(ours, theirs, strict=True)),
                "equal_texts": equal / total,
                "numerics": llm.numerics_id,
            }
        )
    return rows


def _parlay(llm: LLM, batch: list[Prefix]) -> list[list[int]]:
    results = llm.generate([p.tokens for p in batch], [params_for(p, 0.0) for p in batch], progress=False)
    return [list(r.outputs[0].token_ids) for r in results]


def _transformers(peer: Any, batch: list[Prefix]) -> list[list[int]]:
    tokens = torch.tensor([p.tokens for p in batch])
    with torch.inference_mode():
        whole = peer.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
        )
    result: list[list[int]] = whole[:, tokens.shape[1] :].tolist()
    return result
