"""vLLM's options that mean nothing here, or have another name: code written for its documents runs as it is."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlay.errors import ConfigError, shown


@dataclass(frozen=True, slots=True)
class ForeignOption:
    """An option of vLLM's that is accepted and changes nothing.

    Attributes:
        why: it changes nothing.
        only: values it may have; empty for any.
        flag: whether it is a switch on the command line, which takes no value.
        own: whether other values are an option of parlay's own.
    """

    why: str
    only: tuple[Any, ...] = ()
    flag: bool = False
    own: bool = False


_PARTS = "ranks exchange their parts in one way"
_DRAWS = "draft scoring never changes tokens"
FOREIGN: dict[str, ForeignOption] = {
    "enforce_eager": ForeignOption("passes are recorded and replayed without a compiler", flag=True),
    "compilation_config": ForeignOption("nothing is compiled at run time"),
    "max_seq_len_to_capture": ForeignOption("passes of all lengths are recorded"),
    "max_context_len_to_capture": ForeignOption("passes of all lengths are recorded"),
    "swap_space": ForeignOption("requests that lose their blocks are computed anew"),
    "cpu_offload_gb": ForeignOption("weights stay on one device"),
    "disable_custom_all_reduce": ForeignOption(_PARTS, flag=True),
    "worker_use_ray": ForeignOption(_PARTS, flag=True),
    "data_parallel_size": ForeignOption("replicas are a server's: `parlay serve` takes it", only=(1,)),
    "enable_chunked_prefill": ForeignOption("long prompts always go in chunks", flag=True),
    "async_scheduling": ForeignOption("the scheduler has one way to work", flag=True),
    "num_scheduler_steps": ForeignOption("the scheduler has one way to work"),
    "scheduling_policy": ForeignOption(
        "from Python each request has its own priority; a server takes requests as they come"
    ),
    "preemption_mode": ForeignOption("requests that lose their blocks are computed anew"),
    "use_v2_block_manager": ForeignOption("the only block manager supports speculation", flag=True),
    "disable_log_stats": ForeignOption("the server's log_interval sets how often throughput is logged", flag=True),
    "disable_log_requests": ForeignOption("prompts are only logged with log_prompts", flag=True),
    "guided_decoding_backend": ForeignOption("structured outputs have one backend"),
    "chat_template_content_format": ForeignOption(
        "a chat template shows which form of content it takes", only=("auto",)
    ),
    "response_role": ForeignOption("answers come from the assistant", only=("assistant",)),
    "uvicorn_log_level": ForeignOption("PARLAY_LOG sets what is logged"),
    "model_impl": ForeignOption("models have one implementation", only=("auto", "vllm")),
    "api_server_count": ForeignOption("one process serves HTTP", only=(1,)),
    "enable_request_id_headers": ForeignOption("answers always have X-Request-Id", flag=True),
    "enable_auto_tool_choice": ForeignOption("tools are always served", flag=True),
    "tokenizer_mode": ForeignOption("there is only one tokenizer mode"),
    "skip_tokenizer_init": ForeignOption("the tokenizer is always read", only=(False,), flag=True),
    "enable_lora": ForeignOption("adapters are not supported", only=(False,), flag=True),
    "mm_processor_kwargs": ForeignOption("models read text only"),
    "limit_mm_per_prompt": ForeignOption("models read text only"),
    "optimization_level": ForeignOption("nothing is compiled at run time"),
    "attention_backend": ForeignOption("there is only one attention backend"),
    "enable_expert_parallel": ForeignOption("ranks share each expert", flag=True),
    "num_lookahead_slots": ForeignOption("the scheduler has one way to work"),
    "disable_async_output_proc": ForeignOption("the scheduler has one way to work", flag=True),
    "disable_chunked_mm_input": ForeignOption("models read text only", flag=True),
    "speculative_disable_mqa_scorer": ForeignOption(_DRAWS, flag=True),
    "disable_logprobs_during_spec_decoding": ForeignOption("log-probabilities come with each token", flag=True),
    "hf_overrides": ForeignOption("configs are read as they are", only=(None, {})),
    "runner": ForeignOption("models generate text", only=("auto", "generate")),
    "task": ForeignOption("models generate text", only=("auto", "generate")),
}
_RENAMED = {"num_gpu_blocks_override": "num_blocks"}
# Keys of `speculative_config`.
INNER: dict[str, ForeignOption] = {
    "enforce_eager": FOREIGN["enforce_eager"],
    "attention_backend": FOREIGN["attention_backend"],
    "kv_cache_dtype": ForeignOption("a draft model's cache has the dtype of its activations", only=("auto",)),
    "disable_padded_drafter_batch": ForeignOption("batches are never padded"),
    "use_local_argmax_reduction": ForeignOption(_PARTS),
    "disable_mqa_scorer": ForeignOption(_DRAWS),
    "disable_logprobs": ForeignOption("log-probabilities come with each token"),
    "disable_log_stats": ForeignOption("each engine keeps its own counters"),
    "parallel_drafting": ForeignOption("each checkpoint drafts as it was trained", only=(False,), own=True),
    "code_revision": ForeignOption("no Python of a checkpoint is run"),
    "use_heterogeneous_vocab": ForeignOption("vocabularies are compared; `vocabulary` is for those that differ"),
    "suffix_decoding_corpus_tokens": ForeignOption("the corpus of answers is bounded in bytes"),
}
# Other names of methods, and keys that say whether lengths are chosen.
_METHODS = {"ngram_gpu": "ngram"}
_OF_A_FAMILY = "_mtp"  # ends the names of one method that vLLM has by families
_CHOSEN = ("enable_adaptive_verification", "adaptive_verification")


def without_foreign(options: Mapping[str, Any], speculative: Any, stacklevel: int = 1) -> tuple[dict[str, Any], Any]:
    """Return options, and a speculative config, without those that mean nothing here, which one warning names.

    Args:
        options: keyword arguments of an engine.
        speculative: the config, or a list of them.
        stacklevel: whose code to blame: 1 for the caller of this function, 2 for the caller's caller, ...

    Raises:
        ConfigError: one has a value that would mean something.
    """
    left, named = _parted(options, FOREIGN)
    several = speculative if isinstance(speculative, list | tuple) else [speculative]
    configs: list[Any] = []
    for one in several:
        config, more = _parted(one, INNER) if isinstance(one, Mapping) else (one, [])
        configs.append(config)
        named += more
    if named:
        named = list(dict.fromkeys(named))
        warnings.warn(f"vLLM options without effect here: {', '.join(named)}", stacklevel=stacklevel + 1)
    left = {_RENAMED.get(name, name): value for name, value in left.items()}
    return left, configs if several is speculative else configs[0]


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a speculative config in which methods and the choice of lengths have parlay's names.

    Raises:
        ConfigError: two keys contradict each other, or a value is no switch.
    """
    inner = dict(given)
    if isinstance(method := inner.get("method"), str):
        inner["method"] = _METHODS.get(method, "mtp" if method.endswith(_OF_A_FAMILY) else method)
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


def _parted(options: Mapping[str, Any], table: Mapping[str, ForeignOption]) -> tuple[dict[str, Any], list[str]]:
    """Return the options that mean something, and which mean nothing, and why."""
    left: dict[str, Any] = {}
    named: list[str] = []
    for name, value in options.items():
        known = table.get(name)
        if known is None:
            left[name] = value
        elif known.only and value is not None and value not in known.only:
            if known.own:
                left[name] = value
                continue
            allowed = " or ".join(shown(one) for one in known.only if one is not None)
            raise ConfigError(f"{name}={shown(value)} is not supported, since {known.why}; leave it at {allowed}")
        elif value is not None:
            named.append(f"{name} ({known.why})")
    return left, named
