"""What the benchmarks of serving are asked; imports nothing heavy, so that flags can be made from it."""

from dataclasses import dataclass

from parlay.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """One batch at a time, from its prompts to its last token.

    Attributes:
        batch_size: requests that run at once.
        input_len: tokens a prompt.
        output_len: tokens a completion; end-of-sequence is ignored.
        temperature: of sampling; 0 is greedy.
        seed: of the prompts and of the noise.
        num_iters: batches that count, each with other prompts.
        num_iters_warmup: batches before those.
    """

    batch_size: int = 1
    input_len: int = 128
    output_len: int = 64
    temperature: float = 0.0
    seed: int = 0
    num_iters: int = 10
    num_iters_warmup: int = 2

    def __post_init__(self) -> None:
        _check(self, "batch_size", "input_len", "output_len", "num_iters")

    def lengths(self) -> tuple[int, int]:
        """Return the shortest and longest prompt."""
        return self.input_len, self.input_len

    @property
    def requests(self) -> int:
        """How many prompts an iteration has."""
        return self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """Many prompts at once, as fast as the engine can.

    Attributes:
        num_prompts: requests that are queued at once.
        input_len: tokens a prompt, on average.
        range_ratio: how far lengths of prompts are spread: evenly between 1 - this and 1 + this times `input_len`.
        output_len: tokens a completion; end-of-sequence is ignored.
        temperature: of sampling; 0 is greedy.
        seed: of the prompts and of the noise.
        num_iters: rounds that count, each with other prompts.
        num_iters_warmup: rounds before those.
    """

    num_prompts: int = 64
    input_len: int = 128
    range_ratio: float = 0.5
    output_len: int = 64
    temperature: float = 0.0
    seed: int = 0
    num_iters: int = 3
    num_iters_warmup: int = 1

    def __post_init__(self) -> None:
        _check(self, "num_prompts", "input_len", "output_len", "num_iters")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"range_ratio must be at least 0 and below 1, not {self.range_ratio}")

    def lengths(self) -> tuple[int, int]:
        """Return the shortest and longest prompt."""
        spread = round(self.input_len * self.range_ratio)
        return max(1, self.input_len - spread), self.input_len + spread

    @property
    def requests(self) -> int:
        """How many prompts an iteration has."""
        return self.num_prompts


ServingOptions = LatencyOptions | ThroughputOptions


def _check(options: ServingOptions, *positive: str) -> None:
    for name in positive:
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(options, name)}")
    if options.num_iters_warmup < 0:
        raise ConfigError(f"num_iters_warmup must be at least 0, not {options.num_iters_warmup}")
