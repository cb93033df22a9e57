"""vLLM's options that mean nothing here, or have another name: code written for its documents runs as it is."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlay.errors import ConfigError, shown


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option of vLLM's that is accepted and changes nothing.

    Attributes:
        why: it changes nothing.
        only: values it may have; empty for any.
        flag: whether it is a switch on the command line, which takes no value.
    """

    why: str
    only: tuple[Any, ...] = ()
    flag: bool = False


_CUDA, _PARTS = "there is no GPU", "the model runs in one process"
_DRAWS = "how nodes are scored changes no token"
FOREIGN: dict[str, Foreign] = {
    "enforce_eager": Foreign("passes are recorded and replayed without a compiler", flag=True),
    "compilation_config": Foreign("nothing is compiled at run time"),
    "max_seq_len_to_capture": Foreign(_CUDA),
    "max_context_len_to_capture": Foreign(_CUDA),
    "swap_space": Foreign("requests that lose their blocks are computed anew"),
    "cpu_offload_gb": Foreign(_CUDA),
    "disable_custom_all_reduce": Foreign(_PARTS, flag=True),
    "worker_use_ray": Foreign(_PARTS, flag=True),
    "data_parallel_size": Foreign("replicas are a server's: `parlay serve` takes it", only=(1,)),
    "enable_chunked_prefill": Foreign("long prompts always go in chunks", flag=True),
    "async_scheduling": Foreign("the scheduler has one way to work", flag=True),
    "num_scheduler_steps": Foreign("the scheduler has one way to work"),
    "scheduling_policy": Foreign("requests have priorities of their own"),
    "preemption_mode": Foreign("requests that lose their blocks are computed anew"),
    "use_v2_block_manager": Foreign("there is one block manager, which speculates", flag=True),
    "disable_log_stats": Foreign("log_interval of the server says how often it tells its speed", flag=True),
    "disable_log_requests": Foreign("prompts are logged with log_prompts alone", flag=True),
    "enable_auto_tool_choice": Foreign("tools are always served", flag=True),
    "tokenizer_mode": Foreign("there is one kind of tokenizer"),
    "skip_tokenizer_init": Foreign("the tokenizer is always read", only=(False,), flag=True),
    "kv_cache_dtype": Foreign("the cache has the dtype of the activations", only=("auto",)),
    "enable_lora": Foreign("adapters are not served", only=(False,), flag=True),
    "mm_processor_kwargs": Foreign("models read text only"),
    "limit_mm_per_prompt": Foreign("models read text only"),
    "optimization_level": Foreign("nothing is compiled at run time"),
    "attention_backend": Foreign("there is one kind of attention"),
    "enable_expert_parallel": Foreign(_PARTS, flag=True),
    "num_lookahead_slots": Foreign("the scheduler has one way to work"),
    "disable_async_output_proc": Foreign("the scheduler has one way to work", flag=True),
    "disable_chunked_mm_input": Foreign("models read text only", flag=True),
    "speculative_disable_mqa_scorer": Foreign(_DRAWS, flag=True),
    "disable_logprobs_during_spec_decoding": Foreign("log-probabilities come with each token", flag=True),
    "hf_overrides": Foreign("configs are read as they are", only=(None, {})),
    "runner": Foreign("models generate text", only=("auto", "generate")),
    "task": Foreign("models generate text", only=("auto", "generate")),
}
_RENAMED = {"num_gpu_blocks_override": "num_blocks"}
# Keys of `speculative_config`.
INNER: dict[str, Foreign] = {
    "enforce_eager": FOREIGN["enforce_eager"],
    "attention_backend": FOREIGN["attention_backend"],
    "kv_cache_dtype": FOREIGN["kv_cache_dtype"],
    "disable_padded_drafter_batch": Foreign("batches are never padded"),
    "use_local_argmax_reduction": Foreign(_PARTS),
    "disable_mqa_scorer": Foreign(_DRAWS),
    "disable_logprobs": Foreign("log-probabilities come with each token"),
    "disable_log_stats": Foreign("counters are always kept"),
    "parallel_drafting": Foreign("each proposer drafts in its own way", only=(False,)),
    "code_revision": Foreign("no Python of a checkpoint is run"),
    "use_heterogeneous_vocab": Foreign("a draft model has the vocabulary of its target", only=(False,)),
    "suffix_decoding_corpus_tokens": Foreign("what is remembered of answers is bounded in bytes"),
}
# Other names of methods, and keys that say whether lengths are chosen.
_METHODS = {"ngram_gpu": "ngram"}
_CHOSEN = ("enable_adaptive_verification", "adaptive_verification")


def without_foreign(options: Mapping[str, Any], stacklevel: int = 1) -> dict[str, Any]:
    """Return options without those that mean nothing here, which one warning names.

    Args:
        options: keyword arguments of an engine; a mapping under `speculative_config`, or each of a list, loses its
            own too.
        stacklevel: whose code to blame: 1 for the caller of this function, 2 for the caller's caller, ...

    Raises:
        ConfigError: one has a value that would mean something.
    """
    given = options.get("speculative_config")
    several = given if isinstance(given, list | tuple) else [given]
    told = _told(options, FOREIGN)
    for one in several:
        told += _told(one, INNER) if isinstance(one, Mapping) else []
    if told:
        told = list(dict.fromkeys(told))
        warnings.warn(f"vLLM options without effect here: {', '.join(told)}", stacklevel=stacklevel + 1)
    left = {_RENAMED.get(name, name): value for name, value in options.items() if name not in FOREIGN}
    if "speculative_config" in left:
        kept = [
            {k: v for k, v in one.items() if k not in INNER} if isinstance(one, Mapping) else one for one in several
        ]
        left["speculative_config"] = kept if isinstance(given, list | tuple) else kept[0]
    return left


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a speculative config in which methods and the choice of lengths have parlay's names.

    Raises:
        ConfigError: two keys contradict each other, or a value is no switch.
    """
    inner = dict(given)
    if isinstance(method := inner.get("method"), str):
        inner["method"] = _METHODS.get(method, method)
    for name in _CHOSEN:
        if (value := inner.pop(name, None)) is None:
            continue
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, not {shown(value)}")
        lengths = "goodput" if value else "fixed"
        if inner.setdefault("lengths", lengths) != lengths:
            raise ConfigError(
                f"{name}={shown(value)} and lengths={shown(inner['lengths'])} contradict each other; give one of them"
            )
    return inner


def _told(options: Mapping[str, Any], table: Mapping[str, Foreign]) -> list[str]:
    """Return which options mean nothing, and why."""
    told = []
    for name, value in options.items():
        known = table.get(name)
        if known is None or value is None:
            continue
        if known.only and value not in known.only:
            allowed = " or ".join(shown(one) for one in known.only if one is not None)
            raise ConfigError(f"{name}={shown(value)} is not served, since {known.why}; leave it at {allowed}")
        told.append(f"{name} ({known.why})")
    return told
