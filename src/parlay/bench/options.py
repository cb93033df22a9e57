"""What the commands of `parlay bench` measure; imports nothing heavy, so that flags can be made from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from parlay.config.engine import Device
from parlay.config.speculative import LENGTHS, TreeShape
from parlay.config.verification import COUPLED, VERIFICATIONS
from parlay.errors import ConfigError, nearest, shown

_SEVERAL = {"flag": {"nargs": "+"}}  # values follow the flag


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodsOptions:
    """Plain decoding against every method with every budget, on one or several models.

    Attributes:
        models: the targets: directories, GGUF files, names.
        workloads: kinds of prompts: completion, edit, agent, random; the first two need tiny-code's vocabulary. By
            default completion with that, agent and random without, none with `prompts`.
        prompts: complete these prompts: JSON lines with 'turns', 'messages' or 'prompt', .jsonl or .jsonl.gz.
        methods: compare only these with plain decoding, by default all that can serve the model, and auto;
            suffix+eagle3 for two whose drafts become one, auto+eagle3 for auto with weights.
        drafts: checkpoints by their methods' names, in place of those that come with the model.
        budgets: most draft tokens per request and step; every method that drafts takes part with each, by default
            once with its own.
        lengths: lengths of drafts, see `SpeculativeConfig`.
        tree: whether drafts branch, as in `SpeculativeConfig`; a shape is for the methods with weights alone.
        verifications: how drafts are verified: methods with weights take part once with each, the others with the
            first alone; only coupled keeps a seed's tokens.
        dequantize: see `EngineConfig`.
        device: what computes: `cpu`, or `cuda` for an NVIDIA GPU.
        batch_sizes: numbers of prompts that run at once.
        temperatures: temperatures of sampling.
        max_tokens: most tokens after each prompt, by default 32 of a workload and 128 of a file; after those of a
            file an end-of-sequence ends them earlier.
        prefixes: use only this many prompts of each workload and file.
        precision: go on with a case until every interval is within this share of its ratio, to each side.
        repetitions: most repetitions of a case.
        minutes: longest time of a case: no repetition begins later.
    """

    models: tuple[str, ...] = ("tiny-code",)
    workloads: tuple[str, ...] = field(default=(), metadata=_SEVERAL)
    prompts: tuple[Path, ...] = field(default=(), metadata={"aliases": ("dataset",)})
    methods: tuple[str, ...] = field(default=(), metadata=_SEVERAL)
    drafts: Mapping[str, str] = field(default_factory=dict)
    budgets: tuple[int, ...] = field(default=(), metadata={**_SEVERAL, "aliases": ("num_speculative_tokens",)})
    lengths: str = field(default="goodput", metadata={"flag": {"choices": LENGTHS}})
    tree: str | TreeShape = "auto"
    verifications: tuple[str, ...] = field(
        default=(COUPLED,), metadata={"flag": {"nargs": "+", "choices": VERIFICATIONS}}
    )
    dequantize: bool = False
    device: Device = "cpu"
    batch_sizes: tuple[int, ...] = field(default=(1, 8), metadata=_SEVERAL)
    temperatures: tuple[float, ...] = field(default=(0.0, 0.8), metadata=_SEVERAL)
    max_tokens: int | None = None
    prefixes: int | None = None
    precision: float = 0.02
    repetitions: int = 200
    minutes: float = 10.0

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("there is no model to measure; give --models at least one")
        for name, values in (("model", self.models), ("budget", self.budgets)):
            for value in values:
                if values.count(value) > 1:
                    raise ConfigError(f"the {name} {shown(value)} is given twice; give it once")
        for budget in self.budgets:
            if budget < 1:
                raise ConfigError(
                    f"a budget must be at least 1 draft token, not {budget}; plain decoding is measured too"
                )
        given = (name for name in ("max_tokens", "prefixes") if getattr(self, name) is not None)
        _at_least_1(self, "repetitions", *given)
        if min(self.batch_sizes) < 1:
            raise ConfigError(f"a batch size must be at least 1, not {min(self.batch_sizes)}")
        for name in ("precision", "minutes"):
            if not 0 < getattr(self, name) < inf:
                raise ConfigError(f"{name} must be a number above 0, not {getattr(self, name)}")
        for verification in self.verifications:
            if verification not in VERIFICATIONS:
                raise ConfigError(f"unknown verification {shown(verification)}{nearest(verification, VERIFICATIONS)}")
        for temperature in self.temperatures:
            if not 0 <= temperature < inf:
                raise ConfigError(f"a temperature must be at least 0, not {temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedOptions:
    """What the commands have in common that complete prompts of given lengths.

    Attributes:
        input_len: tokens of each prompt.
        output_len: tokens of each completion; end-of-sequence is ignored.
        temperature: temperature of sampling; 0 is greedy.
        seed: seed of the prompts and of the noise.
        num_iters: repetitions that count, each with other prompts.
        num_iters_warmup: repetitions before those.
        dataset: a file of prompts, `.jsonl` or `.jsonl.gz`, in place of texts of `input_len` tokens; its lines have
            `prompt`, `messages` or `turns`, and come in an order that the seed says.
    """

    input_len: int = 128
    output_len: int = 64
    temperature: float = 0.0
    seed: int = 0
    num_iters: int = 10
    num_iters_warmup: int = 2
    dataset: str | None = None

    def __post_init__(self) -> None:
        _at_least_1(self, "input_len", "output_len", "num_iters")
        if self.num_iters_warmup < 0:
            raise ConfigError(f"num_iters_warmup must be at least 0, not {self.num_iters_warmup}")

    @property
    def lengths(self) -> tuple[int, int]:
        """The shortest and longest prompt."""
        return self.input_len, self.input_len

    @property
    def requests(self) -> int:
        """How many prompts a repetition has."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions(SpeedOptions):
    """One batch at a time, from its prompts to its last token.

    Attributes:
        batch_size: requests that run at once.
    """

    batch_size: int = 1

    def __post_init__(self) -> None:
        SpeedOptions.__post_init__(self)
        _at_least_1(self, "batch_size")

    @property
    def requests(self) -> int:  # noqa: D102
        return self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions(SpeedOptions):
    """Many prompts at once, as fast as the engine can.

    Attributes:
        num_prompts: requests that are queued at once.
        input_len: tokens of each prompt, on average.
        range_ratio: how far lengths of prompts are spread: evenly between 1 - this and 1 + this times `input_len`.
    """

    num_prompts: int = 64
    range_ratio: float = 0.5
    num_iters: int = 3
    num_iters_warmup: int = 1

    def __post_init__(self) -> None:
        SpeedOptions.__post_init__(self)
        _at_least_1(self, "num_prompts")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"range_ratio must be at least 0 and below 1, not {self.range_ratio}")

    @property
    def lengths(self) -> tuple[int, int]:
        """The shortest and longest prompt."""
        spread = round(self.input_len * self.range_ratio)
        return max(1, self.input_len - spread), self.input_len + spread

    @property
    def requests(self) -> int:  # noqa: D102
        return self.num_prompts


def _at_least_1(options: object, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(options, name)}")
