"""What benchmarks of methods and of serving are asked; imports nothing heavy, so that flags can be made from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Literal

from parlay.config.speculative import TreeShape
from parlay.config.verification import COUPLED, VERIFICATIONS
from parlay.errors import ConfigError, nearest, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodsOptions:
    """Plain decoding against every method, in interleaved turns.

    Attributes:
        model: the target: a directory, a GGUF file, a name.
        workloads: names of `parlay.bench.workloads.WORKLOADS`; none, without `prompts` too, takes those of the model.
        prompts: files of prompts, see `parlay.bench.prompts`.
        methods: which to compare with plain decoding; none takes all that can serve the model.
        drafts: checkpoints by their methods' names, in place of those that come with the model.
        lengths: of drafts, see `SpeculativeConfig`.
        tree: likewise; a shape is for the methods with weights, and leaves the others as they are.
        verifications: likewise; every method with weights takes part once with each, the others with the first alone.
        dequantize: see `EngineConfig`.
        num_speculative_tokens: most nodes a draft; None takes each method's own default.
        batch_sizes: how many prompts run at once.
        temperatures: of sampling.
        max_tokens: most tokens after each prompt of a file; an end-of-sequence ends them earlier.
        prefixes: use only so many prompts of each workload and file.
        precision: a case ends when every interval is within this share of its ratio, to each side.
        turns: at most so many turns a case.
        minutes: no turn of a case begins later than this.
    """

    model: str = "tiny-code"
    workloads: tuple[str, ...] = ()
    prompts: tuple[Path, ...] = ()
    methods: tuple[str, ...] = ()
    drafts: Mapping[str, str] = field(default_factory=dict)
    lengths: str = "goodput"
    tree: str | TreeShape = "auto"
    verifications: tuple[str, ...] = (COUPLED,)
    dequantize: bool = False
    num_speculative_tokens: int | None = None
    batch_sizes: tuple[int, ...] = (1, 8)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    max_tokens: int = 128
    prefixes: int | None = None
    precision: float = 0.02
    turns: int = 200
    minutes: float = 10.0

    def __post_init__(self) -> None:
        for name in ("max_tokens", "turns"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
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
class SweepOptions:
    """Plain decoding against every method with every budget, on several models.

    Attributes:
        models: the targets, each as `MethodsOptions.model`.
        budgets: most nodes a draft; every method that drafts takes part once with each, and with its own default
            where there are none.
        each: what every model is asked; its own `model` and `num_speculative_tokens` give way to these.
    """

    models: tuple[str, ...] = ("tiny-code",)
    budgets: tuple[int, ...] = ()
    each: MethodsOptions = field(default_factory=MethodsOptions)

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("a sweep has no models; give at least one")
        for name, values in (("model", self.models), ("budget", self.budgets)):
            for value in values:
                if values.count(value) > 1:
                    raise ConfigError(f"the {name} {shown(value)} is given twice; give it once")
        for budget in self.budgets:
            if budget < 1:
                raise ConfigError(f"a budget must be at least 1 node, not {budget}; plain decoding is there anyway")


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
        dataset: a file of prompts, `.jsonl` or `.jsonl.gz`, in place of texts of `input_len` tokens; its lines have
            `prompt`, `messages` or `turns`, and come in an order that the seed says.
    """

    batch_size: int = 1
    input_len: int = 128
    output_len: int = 64
    temperature: float = 0.0
    seed: int = 0
    num_iters: int = 10
    num_iters_warmup: int = 2
    dataset: str | None = None

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
        dataset: a file of prompts, `.jsonl` or `.jsonl.gz`, in place of texts of `input_len` tokens; its lines have
            `prompt`, `messages` or `turns`, and come in an order that the seed says.
    """

    num_prompts: int = 64
    input_len: int = 128
    range_ratio: float = 0.5
    output_len: int = 64
    temperature: float = 0.0
    seed: int = 0
    num_iters: int = 3
    num_iters_warmup: int = 1
    dataset: str | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The same prompts by `LLM` and by a server on this machine.

    Attributes:
        num_prompts: requests at once.
        input_len: tokens a prompt, by the target's tokenizer.
        output_len: tokens a completion; end-of-sequence is ignored.
        temperature: of sampling; 0 is greedy.
        seed: of the prompts and of the noise.
        num_iters: rounds that count, each with other prompts.
        num_iters_warmup: rounds before those.
        num_first: single requests a round whose first token is waited for.
        dataset: a file of prompts, `.jsonl` or `.jsonl.gz`, in place of texts of `input_len` tokens; its lines have
            `prompt`, `messages` or `turns`, and come in an order that the seed says.
    """

    num_prompts: int = 32
    input_len: int = 128
    output_len: int = 128
    temperature: float = 0.0
    seed: int = 0
    num_iters: int = 9
    num_iters_warmup: int = 2
    num_first: int = 10
    dataset: str | None = None

    def __post_init__(self) -> None:
        _check(self, "num_prompts", "input_len", "output_len", "num_iters", "num_first")

    def lengths(self) -> tuple[int, int]:
        """Return the shortest and longest prompt."""
        return self.input_len, self.input_len

    @property
    def requests(self) -> int:
        """How many prompts an iteration has."""
        return self.num_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Requests that come when they come, whether or not the server keeps up.

    Attributes:
        base_url: where the server is, with or without `/v1`; no proxy is used.
        model: what to ask for; without it the server's first.
        endpoint: `completions` or `chat`.
        num_prompts: requests to send; 100 unless a duration is given.
        duration: seconds during which requests are sent, in place of a number of them or as a further limit.
        request_rate: requests a second on average; inf sends all at once.
        burstiness: shape of the gamma distribution of the pauses: 1 is Poisson, less comes in bursts, more is even.
        max_concurrency: requests open at once; others wait in the client, which the report shows.
        input_len: tokens a prompt on average, counted by the embedded model's tokenizer.
        output_len: most tokens an answer, on average.
        range_ratio: how far lengths are spread: evenly between 1 - this and 1 + this times the average.
        ignore_eos: have answers run to their full length (parlay and vLLM know this; it is not in OpenAI's protocol).
        temperature: of sampling; 0 is greedy.
        seed: of arrivals, lengths, prompts and the requests' own seeds.
        num_warmups: requests before those that count, one after the other.
        dataset: a file of prompts, `.jsonl` or `.jsonl.gz`, in place of texts of `input_len` tokens; its lines have
            `prompt`, `messages` or `turns`, and come in an order that the seed says.
        timeout: seconds after which a request is given up.
        goodput: limits in milliseconds that make a request a good one, as `ttft:200`: time to first token (ttft),
            mean time of a token after it (tpot), longest pause between events (itl), whole request (e2el).
    """

    base_url: str = "http://127.0.0.1:8000"
    model: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    num_prompts: int | None = None
    duration: float | None = None
    request_rate: float = inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    input_len: int = 128
    output_len: int = 64
    range_ratio: float = 0.5
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int = 0
    num_warmups: int = 1
    dataset: str | None = None
    timeout: float = 600.0
    goodput: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_prompts", "max_concurrency", "input_len", "output_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in ("request_rate", "burstiness", "timeout", "duration"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0, not {value}")
        for name in ("burstiness", "timeout", "duration"):
            if getattr(self, name) == inf:
                raise ConfigError(f"{name} must be finite")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"range_ratio must be at least 0 and below 1, not {self.range_ratio}")
        if self.num_warmups < 0:
            raise ConfigError(f"num_warmups must be at least 0, not {self.num_warmups}")
        if self.request_rate == inf and self.num_prompts is None and self.duration is not None:
            raise ConfigError("without a request_rate, a duration holds any number of requests; give num_prompts")
        self.limits()

    def lengths(self, average: int) -> tuple[int, int]:
        """Return the shortest and longest of lengths that are spread around an average."""
        spread = round(average * self.range_ratio)
        return max(1, average - spread), average + spread

    def limits(self) -> dict[str, float]:
        """Return the limits for a good request, in milliseconds.

        Raises:
            ConfigError: one is no known name with a number above 0.
        """
        limits: dict[str, float] = {}
        for text in self.goodput:
            name, _, value = text.partition(":")
            if name not in GOODPUT:
                raise ConfigError(f"goodput knows no {name!r}{nearest(name, GOODPUT)}; write it as in ttft:200")
            try:
                limits[name] = float(value)
            except ValueError:
                limits[name] = 0.0
            if not limits[name] > 0:
                raise ConfigError(f"goodput needs milliseconds above 0 after {name}:, not {value!r}")
        return limits


GOODPUT = ("ttft", "tpot", "itl", "e2el")

ServingOptions = LatencyOptions | ThroughputOptions | HttpOptions


def _check(options: ServingOptions, *positive: str) -> None:
    for name in positive:
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(options, name)}")
    if options.num_iters_warmup < 0:
        raise ConfigError(f"num_iters_warmup must be at least 0, not {options.num_iters_warmup}")
