"""The cost of quantisation: perplexity of a text, by how weights, and keys and values, are stored.

As in llama.cpp: the text is cut into windows of equal length, each computed by itself, and the tokens of a window's
second half count, so that each of them has at least half a window before it.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, sqrt
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

from parlay.config.engine import Device
from parlay.errors import ConfigError, shown
from parlay.llm import LLM
from parlay.models.select import describe_model, resolve_dtype
from parlay.runner.footprint import weight_bytes
from parlay.types.cache import KVCacheDtype
from parlay.types.params import SamplingParams
from parlay.types.storage import MADE, Storage

_LEAST_WINDOW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityOptions:
    """What to measure.

    Attributes:
        model: a directory, a GGUF file, a name.
        text: a file of plain text, UTF-8.
        storages: what becomes of the model's matrices, one row each.
        kv_cache_dtypes: forms of keys and values, each with each of the storages.
        context: tokens of a window.
        windows: at most so many; None takes the whole text.
        device: what computes: `cpu`, or `cuda` for an NVIDIA GPU.
    """

    model: str
    text: Path
    storages: tuple[Storage, ...] = ("stored", "plain")
    kv_cache_dtypes: tuple[KVCacheDtype, ...] = ("auto",)
    context: int = 512
    windows: int | None = None
    device: Device = "cpu"

    def __post_init__(self) -> None:
        if self.context < _LEAST_WINDOW:
            raise ConfigError(f"a window must have at least {_LEAST_WINDOW} tokens, not {self.context}")
        if len(set(self.storages)) != len(self.storages) or not self.storages:
            raise ConfigError("give each storage once, and at least one")
        if len(set(self.kv_cache_dtypes)) != len(self.kv_cache_dtypes) or not self.kv_cache_dtypes:
            raise ConfigError("give each dtype of the KV cache once, and at least one")


@dataclass(frozen=True, slots=True)
class _Scores:
    """For every token that counts: its negative log-probability, and the likeliest token."""

    losses: list[float]
    likeliest: list[int]


def measure(options: PerplexityOptions, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each storage and cache, with `perplexity`, its standard `error`, and `same_top`.

    `same_top` is the share of tokens whose likeliest token is that of the last row.

    Args:
        options: what to measure.
        tick: called with a label before every window.

    Raises:
        ConfigError: the text cannot be read, has not two windows, or these are longer than the model's context.
        ModelError: the model cannot be found, read or served.
    """
    try:
        text = options.text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{options.text} cannot be read as text: {error}") from None
    config = describe_model(options.model)
    if options.context >= config.max_position:
        raise ConfigError(
            f"windows of {options.context} tokens leave no room within the model's {config.max_position} positions; "
            "lower --context"
        )
    rows, scores = [], []
    for storage, cache in product(options.storages, options.kv_cache_dtypes):
        label = storage if len(options.kv_cache_dtypes) == 1 else f"{storage}, cache {cache}"
        tick(f"{label}: loading")
        llm = LLM(
            options.model,
            dequantize=storage == "plain",
            quantization=storage if storage in MADE else None,
            speculative_config=None,
            enable_prefix_caching=False,
            max_num_seqs=1,
            use_tqdm_on_load=False,
            max_model_len=options.context + 1,
            kv_cache_dtype=cache,
            device=options.device,
        )
        windows = _windows(llm.engine.codec.encode(text), options)
        began = perf_counter()
        scores.append(_score(llm, windows, tick, label))
        seconds = perf_counter() - began
        stored = replace(config, storage=storage)
        rows.append(
            {
                "storage": storage,
                "kv_cache_dtype": cache,
                "weights_mb": weight_bytes(stored, resolve_dtype("auto", config)) / 1e6,
                "tokens": len(scores[-1].losses),
                **_summary(scores[-1].losses),
                "tokens_per_s": len(windows) * options.context / seconds,
                "numerics": llm.numerics_id,
            }
        )
        del llm
        gc.collect()
    for row, own in zip(rows, scores, strict=True):
        row["same_top"] = fmean(a == b for a, b in zip(own.likeliest, scores[-1].likeliest, strict=True))
    return rows


def _windows(tokens: Sequence[int], options: PerplexityOptions) -> list[list[int]]:
    """Cut a text; what is left at its end is dropped."""
    size = options.context
    count = min(len(tokens) // size, options.windows or len(tokens))
    if count < 2:
        raise ConfigError(
            f"{shown(str(options.text))} has {len(tokens)} tokens, too few for two windows of {size}; lower --context"
        )
    return [list(tokens[i * size : (i + 1) * size]) for i in range(count)]


def _score(llm: LLM, windows: Sequence[list[int]], tick: Callable[[str], None], label: str) -> _Scores:
    scores = _Scores([], [])
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1, ignore_eos=True)
    for number, window in enumerate(windows):
        tick(f"{label}: window {number + 1} of {len(windows)}")
        (output,) = llm.generate([window], params, use_tqdm=False)
        if output.error is not None:
            raise output.error
        found = output.prompt_logprobs
        assert found is not None
        for token, of in zip(window[len(window) // 2 :], found[len(window) // 2 :], strict=True):
            assert of is not None
            scores.losses.append(-of[token].logprob)
            scores.likeliest.append(min(of, key=lambda t: of[t].rank))
    return scores


def _summary(losses: Sequence[float]) -> dict[str, float]:
    perplexity = exp(fmean(losses))
    return {"perplexity": perplexity, "error": perplexity * stdev(losses) / sqrt(len(losses))}
