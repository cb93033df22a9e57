"""Latency and throughput: plain decoding and, where one is given, one way of speculating, interleaved.

Prompts are pieces of Python code that come with the package, in the model's own tokens, cut at places that the seed
decides. Every method completes the same prompts with the same noise, repetition by repetition, so that drift of the
machine affects all alike; a speed-up is the median of the repetitions' ratios.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from parlay.bench.options import LatencyOptions, SpeedOptions, ThroughputOptions
from parlay.bench.prompts import read_prompts
from parlay.bench.repetitions import Repetitions
from parlay.bench.workloads import load_prefixes
from parlay.checkpoints.find import ASSETS
from parlay.config import SpeculativeConfig
from parlay.errors import ConfigError
from parlay.llm import LLM
from parlay.text.tokenizer import TextCodec
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

PLAIN = "plain"


def measure(
    engine: Mapping[str, Any],
    speculative: SpeculativeConfig | None,
    options: SpeedOptions,
    tick: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return one row per method, plain decoding first.

    Args:
        engine: options of the engines; by default they cache no prefixes.
        speculative: what to compare with plain decoding, if one is given.
        options: the workload.
        tick: called with a label before every repetition.

    Raises:
        ConfigError: prompts and completions do not fit into the model's context.
    """
    engine = {"enable_prefix_caching": False, "use_tqdm_on_load": False, **engine}
    llms = {PLAIN: LLM(**engine, speculative_config=None)}
    if speculative is not None:
        llm = LLM(**engine, speculative_config=speculative)
        llms["+".join(llm.engine.methods[1:])] = llm
    work = workload(llms[PLAIN].engine.codec, options, llms[PLAIN].engine.max_model_len)
    repetitions = Repetitions(tuple(llms))
    outputs: dict[str, list[list[CompletionOutput]]] = {name: [] for name in llms}
    for i, (prompts, params) in enumerate(work):
        warming = i < options.num_iters_warmup
        parts = {name: partial(_complete, llm, prompts, params) for name, llm in llms.items()}
        label = f"repetition {i + 1} of {len(work)}:"
        found = (Repetitions(tuple(llms)) if warming else repetitions).run(parts, tick, label)
        if not warming:
            for name, own in found.items():
                outputs[name].append(own)
    columns = _latency if isinstance(options, LatencyOptions) else _throughput
    rows = []
    for name, answers in outputs.items():
        ratio, metrics = repetitions.estimate(name), [one.metrics for batch in answers for one in batch]
        rows.append(
            {
                "method": name,
                **columns(answers, repetitions.seconds[name], options),
                "acceptance_length": sum(m.emitted for m in metrics) / sum(m.steps for m in metrics),
                "speed_up": ratio.median,
                "interval": ratio.interval,
                "same_tokens": _tokens(answers) == _tokens(outputs[PLAIN]),
                "seconds": repetitions.seconds[name],
                "numerics": llms[name].numerics_id,
            }
        )
    return rows


def _complete(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[CompletionOutput]:
    return [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]


def workload(
    codec: TextCodec, options: SpeedOptions, limit: int
) -> list[tuple[list[list[int]], list[SamplingParams]]]:
    """Return prompts and parameters of every repetition, warm-up first; equal options give equal workloads.

    Args:
        codec: the model's tokenizer and chat template.
        options: the workload.
        limit: tokens of the model's context.

    Raises:
        ConfigError: prompts and completions do not fit into that, or the dataset cannot be read.
    """
    random = Random(options.seed)
    draw = (
        _from_file(codec, options, limit, random)
        if options.dataset
        else _sample_prompts(codec, options, limit, random)
    )
    work = []
    for _ in range(options.num_iters_warmup + options.num_iters):
        prompts, params = [], []
        for _ in range(options.requests):
            prompts.append(next(draw))
            params.append(
                SamplingParams(
                    temperature=options.temperature,
                    seed=random.getrandbits(63),
                    max_tokens=options.output_len,
                    ignore_eos=True,
                )
            )
        work.append((prompts, params))
    return work


def _from_file(codec: TextCodec, options: SpeedOptions, limit: int, random: Random) -> Iterator[list[int]]:
    """Yield the prompts of the dataset, in another order in each pass."""
    assert options.dataset is not None
    known = [list(one.tokens) for one in read_prompts(Path(options.dataset), codec, limit - options.output_len)]
    return (prompt for _ in count() for prompt in random.sample(known, len(known)))


def _sample_prompts(codec: TextCodec, options: SpeedOptions, limit: int, random: Random) -> Iterator[list[int]]:
    """Yield pieces of the code that comes with the package."""
    shortest, longest = options.lengths
    if longest + options.output_len > limit:
        raise ConfigError(
            f"prompts and completions of {longest + options.output_len} tokens exceed the context of {limit}; "
            "shorten them"
        )
    embedded = TextCodec(ASSETS / "tiny-code")
    text = "".join(embedded.decode(prefix.tokens) for prefix in load_prefixes())
    tokens = codec.encode(text, add_special_tokens=False)

    def pieces() -> Iterator[list[int]]:
        while True:
            start, length = random.randrange(len(tokens)), random.randint(shortest, longest)
            yield [tokens[(start + j) % len(tokens)] for j in range(length)]

    return pieces()


def _latency(outputs: list[list[CompletionOutput]], seconds: list[float], options: SpeedOptions) -> dict[str, Any]:
    metrics = [one.metrics for batch in outputs for one in batch]
    after_first = [(m.finished - m.first_token) / (m.emitted - 1) for m in metrics if m.emitted > 1]
    return {
        "batch": options.requests,
        "median_s": median(seconds),
        "p90_s": quantiles(seconds, n=10)[-1] if len(seconds) > 1 else seconds[0],
        "first_token_ms": 1e3 * median(m.first_token - m.arrival for m in metrics),
        "ms_per_token": 1e3 * median(after_first) if after_first else None,
    }


def _throughput(outputs: list[list[CompletionOutput]], seconds: list[float], options: SpeedOptions) -> dict[str, Any]:
    emitted = [sum(len(one.token_ids) for one in batch) for batch in outputs]
    return {
        "prompts": options.requests,
        "median_s": median(seconds),
        "requests_per_s": median(options.requests / s for s in seconds),
        "tokens_per_s": median(n / s for n, s in zip(emitted, seconds, strict=True)),
    }


def _tokens(outputs: list[list[CompletionOutput]]) -> list[list[tuple[int, ...]]]:
    return [[one.token_ids for one in batch] for batch in outputs]


def panels(rows: Sequence[Mapping[str, Any]], options: SpeedOptions) -> dict[str, dict[str, dict[str, float]]]:
    """Return the data to plot of `measure`'s rows; see `parlay.bench.plots`."""
    if isinstance(options, ThroughputOptions):
        shown = {"tokens / s": "tokens_per_s"}
    else:
        shown = {"seconds a batch, median": "median_s", "ms to the first token": "first_token_ms"}
        shown["ms a token after it"] = "ms_per_token"
    return {
        title: {str(row["method"]): {"": float(row[key])} for row in rows}
        for title, key in shown.items()
        if all(row[key] is not None for row in rows)
    }
