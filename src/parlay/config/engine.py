"""What an engine is started with."""

from dataclasses import dataclass
from typing import Literal

from parlay.errors import ConfigError

DType = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an engine. Names are vLLM's where both have the option.

    Attributes:
        model: a directory in Hugging Face format, a GGUF file, or the name of an embedded model.
        dtype: of weights, activations and cache; `auto` takes the checkpoint's.
        max_model_len: longest sequence, prompt and output together; None takes the model's limit.
        max_num_seqs: requests that may run in one step.
        max_num_batched_tokens: rows that one step may run through the target; longer prompts go in chunks.
        block_size: tokens a cache block.
        num_blocks: blocks in the cache pool; None derives it from `kv_cache_memory`.
        kv_cache_memory: bytes for the cache; None takes what `max_num_seqs` sequences of full length
            need, up to a quarter of the memory that is free.
        enable_prefix_caching: keep computed blocks for prompts that begin alike.
        seed: from which requests without a seed derive theirs.
        tensor_parallel_size: ranks a layer is split over; only 1 so far.
        device: only `cpu` so far.
    """

    model: str = "tiny-code"
    dtype: DType = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int | None = None
    enable_prefix_caching: bool = True
    seed: int = 0
    tensor_parallel_size: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_model_len", "num_blocks", "kv_cache_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.tensor_parallel_size != 1:
            raise ConfigError(f"tensor_parallel_size={self.tensor_parallel_size} is not served yet; leave it at 1")
        if self.device != "cpu":
            raise ConfigError(f"device={self.device!r} is not served yet; leave it at 'cpu'")
