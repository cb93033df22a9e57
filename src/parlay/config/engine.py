"""The options of an engine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal

from parlay.config.strict import build
from parlay.errors import ConfigError, shown
from parlay.types.cache import KVCacheDtype
from parlay.types.storage import MADE, LoadFormat, Storage

Device = Literal["cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal[
    "int8", "int4", "awq", "gptq", "gguf", "fp8", "fbgemm_fp8", "compressed-tensors", "bitsandbytes", "mlx"
]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]

_HIGHEST = (1 << 63) - 1
_MOST = (1 << 24) - 1  # requests, tokens or blocks at once: what tables of 32 bits hold many times over
MOST_RANKS = 64  # of one machine
_LOWEST_SEED, _HIGHEST_SEED = -(1 << 63), (1 << 64) - 1

# Defaults of servers and `AsyncLLM`: one request's prefill does not hold up the decoding of others.
SERVING: Mapping[str, Any] = {"max_prefill_slowdown": 2.0}


def _dtype(value: object) -> str:
    """Return a dtype's name from any that people use, torch's objects included."""
    name = (value if isinstance(value, str) else shown(value)).removeprefix("torch.")
    return {"float": "float32", "half": "float16"}.get(name, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an engine. Names are vLLM's where both have the option.

    Attributes:
        model: a directory in Hugging Face format, a GGUF file, `owner/name` on the hub, a GGUF file there as
            `owner/name/file.gguf` or `owner/name:Q4_K_M`, a short name such as `llama3.2:1b`, or the name of an
            embedded model.
        tokenizer: a model, in any of these forms, whose tokenizer to use instead of the model's own; its chat
            template is taken too.
        revision: branch, tag or commit of a model on the hub; refused for directories, files and embedded models,
            which have one version.
        tokenizer_revision: the same for the tokenizer; None takes `revision`, or for another model's tokenizer its
            main branch.
        hf_token: token of an account on the hub that may read the models; None takes HF_TOKEN or the login of the
            hub's own command. Others can see the command line: there, the variable is better.
        download_dir: the hub's cache; None takes HF_HUB_CACHE or the hub's default.
        trust_remote_code: always refused when true; a checkpoint's own Python is never run.
        dtype: data type of weights, activations and cache; `auto` takes the checkpoint's. Weights that are stored as
            `float16` stay so, whatever this is; with `auto` or `float16` (also spelled `half`) their activations and
            cache are float32, and for other checkpoints the latter is refused.
        dequantize: unpack quantised weights, and those in float16, to `dtype` when they are read; kinds that the
            kernels multiply with stay as they are stored otherwise, which takes less memory and time.
        load_format: kind of files that weights are read from; `auto` takes what is there, safetensors before `.bin`.
            `safetensors`, `pt` (that is `.bin`), `gguf` and `bitsandbytes` say what is expected, and refuse the rest.
        quantization: `int8` has all matrices in eight bits, every 32 inputs of an output with a scale of their own,
            and `int4` in four, with a minimum too, but embedding and head in eight; both are made when the model is
            read. None leaves matrices as they are stored. `awq`, `gptq`, `gguf`, `fp8`, `fbgemm_fp8`,
            `compressed-tensors`, `bitsandbytes` and `mlx` do so too, and are refused for other files.
        kv_cache_dtype: `int8` stores keys and values in eight bits, every 32 numbers of one with a scale of their
            own, in 53 % of bfloat16's memory. Tokens are not those of `auto`, but as independent of drafts and batch.
        generation_config: where sampling parameters come from that a request does not give: `auto` reads the model's
            own `generation_config.json` (temperature, top_p, top_k, min_p, repetition_penalty) or what a GGUF file
            has of them; `vllm` takes SamplingParams' defaults; else a directory with such a file.
        max_model_len: longest sequence, prompt and output together; None takes the model's limit.
        max_num_seqs: requests that may run in one step.
        max_num_batched_tokens: rows that one step may run through the target; longer prompts go in chunks.
        max_prefill_slowdown: how many times as long a step may take that has prompts beside requests that decode, at
            least 1. A chunk is as long as that, or 50 ms, allows here. None is no limit, which gives the most tokens
            a second to prompts that come together; a server and `AsyncLLM` take 2.
        block_size: tokens a cache block.
        num_blocks: blocks in the cache pool; None derives it from `kv_cache_memory`.
        kv_cache_memory: bytes for the cache, also spelled `kv_cache_memory_bytes`; None takes 1 GiB, or
            what four sequences of full length need if that is more, up to a quarter of the memory that the weights
            leave free. Memory is taken as the cache fills.
        gpu_memory_utilization: share of the device's free memory that weights and cache may take together; on a
            `cpu` that is the machine's memory. Given, it replaces those limits of the cache.
        enable_prefix_caching: keep computed blocks for prompts that begin alike.
        logprobs_mode: what reported log-probabilities are of: `raw_logprobs` of the model's own logits,
            `processed_logprobs` of what a token is drawn from, after penalties, masks, temperature and filters
            (at temperature 0, after penalties and masks). Those of a prompt are always raw.
        seed: from which requests without a seed derive theirs.
        served_model_name: what the model is called by those who use it, and in reports; None takes `model`. A
            server takes each of several names; answers and metrics say the first.
        use_tqdm_on_load: show a bar while weights are loaded, if stderr is a terminal.
        tensor_parallel_size: ranks, each a process, that share every layer; tokens and log-probabilities are those of
            one. Threads are divided among them.
        pipeline_parallel_size: ranks that have some of the layers each, one stage after another, instead.
        tensor_parallel_mode: `exact` splits layers by outputs, with the bits of one rank; `fast` splits some by
            inputs and adds sums, with half the exchanges, for slow links; its bits depend on the number of ranks.
        rank_address: `HOST:PORT` where the other ranks join, from this or other machines, by `parlay rank HOST:PORT`;
            None starts them on this machine. Both sides need the same PARLAY_RANK_KEY.
        distributed_executor_backend: `mp` has ranks as processes, `ray` as actors on the machines of a Ray cluster.
        device: `cpu`, or `cuda` for an NVIDIA GPU, which is new and served by one rank; `auto` is the CPU.
    """

    model: str = "tiny-code"
    tokenizer: str | None = None
    revision: str | None = None
    tokenizer_revision: str | None = None
    hf_token: str | None = field(default=None, repr=False)
    download_dir: str | None = None
    trust_remote_code: bool = False
    dtype: DType = field(default="auto", metadata={"flag": {"type": _dtype}})
    dequantize: bool = False
    load_format: LoadFormat = "auto"
    quantization: Quantization | None = None
    kv_cache_dtype: KVCacheDtype = "auto"
    generation_config: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_prefill_slowdown: float | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int | None = field(default=None, metadata={"aliases": ("kv_cache_memory_bytes",)})
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = True
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int = 0
    served_model_name: str | tuple[str, ...] | None = None
    use_tqdm_on_load: bool = True
    tensor_parallel_size: int = field(default=1, metadata={"short": "-tp"})
    pipeline_parallel_size: int = field(default=1, metadata={"short": "-pp"})
    tensor_parallel_mode: Literal["exact", "fast"] = "exact"
    rank_address: str | None = None
    distributed_executor_backend: Literal["mp", "ray"] = "mp"
    device: Literal["auto", "cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        sizes = ("max_num_seqs", "max_num_batched_tokens", "block_size")
        for name in (*sizes, "max_model_len", "num_blocks", "kv_cache_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {shown(value)}")
            most = _MOST if name in ("max_num_seqs", "max_num_batched_tokens") else _HIGHEST
            if value is not None and value > most:
                raise ConfigError(f"{name} must be at most {most}, not {shown(value)}")
        names = ("model", "tokenizer", "revision", "tokenizer_revision", "hf_token", "download_dir")
        for name in names:
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must not be empty; leave it out")
        if self.served_model_name is not None:
            called = self.model_names
            if not called or "" in called:
                raise ConfigError("served_model_name must not be empty; leave it out")
            if len(set(called)) < len(called):
                raise ConfigError(f"served_model_name has {shown(called)}, one of them twice; give each once")
        if self.hf_token is not None and not re.fullmatch("[!-~]+", self.hf_token):
            # It would be quoted in an error where it is sent.
            raise ConfigError("hf_token must be printable ASCII characters without spaces; copy it again")
        slowdown = self.max_prefill_slowdown
        if slowdown is not None and not 1 <= slowdown < inf:
            raise ConfigError(f"max_prefill_slowdown must be at least 1 and finite, not {slowdown}")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"gpu_memory_utilization must be above 0 and at most 1, not {share}")
        if not _LOWEST_SEED <= self.seed <= _HIGHEST_SEED:
            raise ConfigError(f"seed must be between {_LOWEST_SEED} and {_HIGHEST_SEED}, not {shown(self.seed)}")
        if self.trust_remote_code:
            raise ConfigError(
                "trust_remote_code is refused: parlay runs no Python code of a checkpoint; leave it out, and the "
                "model runs if its architecture is supported"
            )
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if not 1 <= getattr(self, name) <= MOST_RANKS:
                raise ConfigError(f"{name} must be between 1 and {MOST_RANKS}, not {shown(getattr(self, name))}")
        if self.rank_address is not None and self.distributed_executor_backend == "ray":
            raise ConfigError("Ray starts the ranks itself; leave out rank_address or distributed_executor_backend")
        if self.rank_address is not None and self.ranks == 1:
            raise ConfigError("rank_address is for several ranks; set tensor_parallel_size, or leave it out")
        if self.dequantize and self.quantization in MADE:
            raise ConfigError(
                f"dequantize and quantization={shown(self.quantization)} contradict each other; give one of them"
            )
        if self.device == "auto":
            object.__setattr__(self, "device", "cpu")
        if self.device != "cpu" and self.ranks > 1:
            raise ConfigError(
                f"device={shown(self.device)} serves a model on one GPU so far; leave tensor_parallel_size and "
                "pipeline_parallel_size at 1"
            )

    @property
    def storage(self) -> Storage:
        """How the model's matrices are stored once they are read."""
        if self.dequantize:
            return "plain"
        for made in MADE:
            if self.quantization == made:
                return made
        return "stored"

    @property
    def model_name(self) -> str:
        """The model's public name: the first of its names."""
        return self.model_names[0]

    @property
    def model_names(self) -> tuple[str, ...]:
        """All its names."""
        named = self.served_model_name
        if named is None:
            return (self.model,)
        return (named,) if isinstance(named, str) else named

    @property
    def ranks(self) -> int:
        """Processes that the model is split among."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def machines(self) -> int:
        """Ranks among which memory is divided: those that may be on other machines."""
        elsewhere = self.rank_address is not None or self.distributed_executor_backend == "ray"
        return self.ranks if elsewhere else 1

    @property
    def split(self) -> tuple[int, int]:
        """Ranks that share each layer, and stages that have layers of their own."""
        return self.tensor_parallel_size, self.pipeline_parallel_size

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "EngineConfig":
        """Return a config from a user's values: some options have two names, dtypes several.

        Raises:
            ConfigError: an unknown option, one given under two names, of the wrong type, or out of range.
        """
        options = dict(values)
        aliases = {alias: f.name for f in fields(cls) for alias in f.metadata.get("aliases", ())}
        for alias, name in aliases.items():
            if alias in options:
                if name in options:
                    raise ConfigError(f"{alias} and {name} are two names of one option; give one of them")
                options[name] = options.pop(alias)
        if "dtype" in options:
            options["dtype"] = _dtype(options["dtype"])
        return build(cls, options, "option", also=(*aliases, "speculative_config"))
