"""The keywords that vLLM's documents had for speculation up to version 0.6, translated to today's."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from parlay.config.speculative import DEFAULT, from_json
from parlay.config.vllm_options import without_foreign
from parlay.errors import ConfigError, brief, shown

# What each is called inside `speculative_config`.
OLDER = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_disable_by_batch_size": "disable_by_batch_size",
    "spec_decoding_acceptance_method": "acceptance_method",
    "typical_acceptance_sampler_posterior_threshold": "posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha": "posterior_alpha",
}


def modernise(options: Mapping[str, Any], speculative: Any, stacklevel: int = 1) -> tuple[dict[str, Any], Any]:
    """Return options without older keywords, and the speculative config with their values.

    Every older keyword gives a `DeprecationWarning` with what to write now; vLLM's options without a meaning here
    give one warning together.

    Args:
        options: keyword arguments of an engine.
        speculative: `speculative_config` as given, or `DEFAULT`.
        stacklevel: whose code to blame: 1 for the caller of this function, 2 for the caller's caller, ...

    Raises:
        ConfigError: older keywords beside `speculative_config`, or without `speculative_model`.
    """
    speculative = from_json(speculative)
    older = {key: value for key, value in options.items() if key in OLDER and value is not None}
    if older and speculative is not DEFAULT and speculative is not None:
        raise ConfigError(f"{next(iter(older))} and speculative_config contradict each other; write the latter alone")
    if older and "speculative_model" not in older:
        now = {OLDER[key]: value for key, value in older.items()}
        raise ConfigError(
            f"{next(iter(older))} needs a method: write speculative_config={{'method': ..., {_inner(now)}}}"
        )
    if older:
        speculative = _translate(older)
    for key in options:
        if key in older:
            advice = f"write speculative_config={shown(speculative)}"
        elif key in OLDER:
            advice = "leave it out"
        else:
            continue
        warnings.warn(f"{key} is an older keyword; {advice}", DeprecationWarning, stacklevel=stacklevel + 1)
    left = {k: v for k, v in options.items() if k not in OLDER}
    return without_foreign(left, speculative, stacklevel=stacklevel + 1)


def _translate(older: Mapping[str, Any]) -> dict[str, Any]:
    now = {OLDER[key]: value for key, value in older.items()}
    name = now.pop("model")
    if not isinstance(name, str):
        raise ConfigError(f"speculative_model must be a name such as '[ngram]' or a draft model's, not {shown(name)}")
    # A name in brackets is a method that needs no model.
    bracketed = re.fullmatch(r"\[(\w+)\]", name)
    config = {"method": bracketed[1]} if bracketed else {"model": name}
    # Without a lower bound n-grams of every length counted; today one bound alone means both.
    if "prompt_lookup_max" in now:
        now.setdefault("prompt_lookup_min", 1)
    return config | now


def _inner(mapping: Mapping[str, Any]) -> str:
    return brief(repr(dict(mapping))[1:-1])
