"""Plain parlay against transformers' `generate`, interleaved."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from parlay import env
from parlay.bench.paired import Turns, estimate
from parlay.bench.prompts import read_prompts
from parlay.bench.protocol import TOKENS, load_prefixes
from parlay.checkpoints.find import find_model
from parlay.errors import ConfigError
from parlay.llm import LLM
from parlay.types.params import SamplingParams

_PROMPTS = 5  # long ones that count


def measure(
    model: str,
    batch_sizes: tuple[int, ...],
    prefixes: int,
    prompt_length: int | None,
    tick: Callable[[str], None],
    *,
    dataset: Path | None = None,
) -> list[dict[str, Any]]:
    """Return one row a batch size: greedy, bfloat16, 32 tokens after each 128-token prefix, prompts included.

    Args:
        model: name or directory of a model with tiny-code's vocabulary.
        batch_sizes: how many prefixes run at once.
        prefixes: how many prefixes to complete for each batch size.
        prompt_length: add a row for one prompt of this many tokens (prefixes one after another) and one new token.
        tick: called with a label before every round.
        dataset: a file of prompts in place of the prefixes; all are cut to the length of the shortest.

    Raises:
        ConfigError: the dataset cannot be read or is too small, transformers is not installed, or the model is too
            short for the prompt.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise ConfigError("this comparison needs transformers; pip install 'parlay[transformers]'") from None
    tick("loading")
    llm = LLM(model, dtype="bfloat16", enable_prefix_caching=False, speculative_config=None, use_tqdm_on_load=False)
    if prompt_length is not None and prompt_length >= llm.engine.max_model_len:
        raise ConfigError(
            f"a prompt of {prompt_length} tokens leaves no room within {llm.engine.max_model_len}; shorten it"
        )
    asked = None if dataset is None else _cut(dataset, llm, prefixes, max(batch_sizes))
    # Its own default is evaluation mode already.
    peer = AutoModelForCausalLM.from_pretrained(find_model(model), dtype=torch.bfloat16)
    torch.set_num_threads(env.threads())
    chosen = [p.tokens for p in load_prefixes(prefixes)] if asked is None else asked
    rows = [
        _compare(llm, peer, [chosen[i : i + n] for i in range(0, len(chosen), n)], TOKENS, tick) for n in batch_sizes
    ]
    if prompt_length is not None:
        endless = [token for p in load_prefixes() for token in p.tokens]
        starts = range(0, _PROMPTS * prompt_length, prompt_length)
        prompts = [[tuple((endless * _PROMPTS)[i : i + prompt_length])] for i in starts]
        rows.append(_compare(llm, peer, prompts, 1, tick))
    return rows


def _cut(dataset: Path, llm: LLM, count: int, batch: int) -> list[tuple[int, ...]]:
    """Return whole batches of prompts of one length, since transformers gets them without padding."""
    prompts = read_prompts(dataset, llm.engine.codec, llm.engine.max_model_len - TOKENS, count)
    if len(prompts) < batch:
        raise ConfigError(f"{dataset} has {len(prompts)} prompts, too few for a batch of {batch}")
    shortest = min(len(one.tokens) for one in prompts)
    return [one.tokens[:shortest] for one in prompts[: len(prompts) // batch * batch]]


def _compare(
    llm: LLM, peer: Any, batches: list[list[tuple[int, ...]]], new: int, tick: Callable[[str], None]
) -> dict[str, Any]:
    """Complete every batch of prompts with both, turn by turn; the first batch once more before, as a warm-up."""
    turns, equal = Turns(("transformers", "parlay")), 0
    shape = f"{len(batches[0])} x {len(batches[0][0])} + {new} tokens"
    for i, batch in enumerate([batches[0], *batches]):
        tick(f"{shape}: round {i} of {len(batches)}")
        theirs, ours = partial(_transformers, peer, batch, new), partial(_parlay, llm, batch, new)
        parts = {"transformers": theirs, "parlay": ours}
        if i == 0:
            Turns(tuple(parts)).take(parts)
            continue
        found = turns.take(parts)
        equal += sum(a == b for a, b in zip(*found.values(), strict=True))
    ratio = estimate(turns.ratios("parlay"))
    tokens = (new if new > 1 else len(batches[0][0])) * len(batches[0])
    return {
        "batch": len(batches[0]),
        "prompt": len(batches[0][0]),
        "new": new,
        "parlay_tokens_per_s": tokens / median(turns.seconds["parlay"]),
        "transformers_tokens_per_s": tokens / median(turns.seconds["transformers"]),
        "speed_up": ratio.median,
        "interval": ratio.interval,
        "equal_texts": equal / sum(map(len, batches)),
        "numerics": llm.numerics_id,
    }


def _parlay(llm: LLM, batch: list[tuple[int, ...]], new: int) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    results = llm.generate(batch, params, use_tqdm=False)
    return [list(r.outputs[0].token_ids) for r in results]


def _transformers(peer: Any, batch: list[tuple[int, ...]], new: int) -> list[list[int]]:
    tokens = torch.tensor(batch)
    with torch.inference_mode():
        whole = peer.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, min_new_tokens=new, do_sample=False
        )
    result: list[list[int]] = whole[:, tokens.shape[1] :].tolist()
    return result
