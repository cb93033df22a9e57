"""Answers to JSON schemas: plain decoding under a grammar against every proposer under the same one, interleaved.

Request i continues prompt i with schema i mod 4 and seed i, without white space between the parts. The cost of the
grammar is measured on the answers, token by token: the mask with its application and the search for forced tokens.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import torch

from benchmarks.common import start
from parlay.bench.contenders import complete, contenders, engines
from parlay.bench.prompts import read_prompts
from parlay.bench.repetitions import Repetitions
from parlay.bench.tally import Tally
from parlay.bench.workloads import Prefix, load_prefixes
from parlay.cli.flags import add_model
from parlay.cli.report import Columns, count, progress, report
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.sampling.grammar import Grammars
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams
from parlay.types.structured import StructuredOutputsParams

TEMPERATURES = (0.0, 0.8)
MAX_TOKENS = 96
_ANSWERS = 16  # of each method in a repetition


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_NAME: dict[str, Any] = {"type": "string", "pattern": "^[a-z_]{1,16}$"}
# What programs ask models for: a call of a function, a record taken from a text, a verdict with its reasons, a plan.
SCHEMAS = (
    _object(
        function={"enum": ["get_weather", "search_documents", "send_message"]},
        arguments=_object(location=_NAME, unit={"enum": ["celsius", "fahrenheit"]}, limit={"type": "integer"}),
    ),
    _object(
        class_name=_NAME,
        methods={"type": "array", "items": _object(name=_NAME, static={"type": "boolean"}), "maxItems": 3},
        documented={"type": "boolean"},
    ),
    _object(
        severity={"enum": ["information", "warning", "error"]},
        line_number={"type": "integer", "minimum": 1, "maximum": 9999},
        explanation={"type": "string", "maxLength": 40},
    ),
    _object(
        description={"type": "string", "maxLength": 30},
        estimated_minutes={"type": "integer", "minimum": 0, "maximum": 600},
        depends_on={"type": "array", "items": _NAME, "maxItems": 2},
        owner={"anyOf": [_NAME, {"type": "null"}]},
    ),
)


_COLUMNS: Columns = {
    "batch": ("batch", "{:d}"),
    "temperature": ("temp.", "{:g}"),
    "method": ("method", "{}"),
    "tokens_per_s": ("tok/s", "{:,.0f}"),
    "speed_up": ("ratio", "{:.2f}x"),
    "acceptance_length": ("accept", "{:.2f}"),
    "forced_share": ("forced", "{:.0%}"),
    "stopped": ("ended", "{:.0%}"),
    "grammar_us_per_token": ("grammar us/tok", "{0[median]:.0f}"),
    "same_tokens": ("same", "{}"),
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "tiny-code", "the target, of tiny-code's vocabulary or with --dataset")
    add = parser.add_argument
    add("--dataset", type=Path, metavar="FILE", help="JSON lines with 'turns', 'messages' or 'prompt' to complete")
    add("--batch-sizes", type=count, nargs="+", default=[1, 8], help="requests that run at once (default: 1 8)")
    add("--requests", type=count, default=128, help="number of answers (default: 128)")
    add("--num-speculative-tokens", type=count, help="draft tokens per step (default: each proposer's own)")


def _run(options: argparse.Namespace) -> int:
    sizes, length = tuple(options.batch_sizes), options.num_speculative_tokens
    with progress() as tick:
        rows = list(measure(options.model, sizes, options.requests, length, tick, options.dataset))
    report(options, rows, _COLUMNS)
    return 0 if all(row["same_tokens"] for row in rows) else 1


def measure(
    model: str,
    batch_sizes: tuple[int, ...],
    requests: int,
    length: int | None,
    tick: Callable[[str], None],
    dataset: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one row a batch size, temperature and method.

    Args:
        model: the target; without a dataset `tiny-code`, or a model with its vocabulary.
        batch_sizes: how many requests run at once.
        requests: how many.
        length: draft tokens per step; None takes each proposer's default.
        tick: called with a label before every repetition.
        dataset: a file of prompts, see `parlay.bench.prompts`; None takes the held-out prefixes.

    Raises:
        ConfigError: the dataset cannot be read.
    """
    most = max(batch_sizes)
    llms = engines(model, contenders(model, length), most)
    plain = next(iter(llms))
    if dataset is None:
        prefixes = load_prefixes(requests)
    else:
        engine = llms[plain].engine
        prefixes = read_prompts(dataset, engine.codec, engine.max_model_len - MAX_TOKENS, requests)
    for llm in llms.values():
        complete(llm, prefixes[:most], most, partial(_params, temperature=0.8))  # warm-up; compiles the grammars too
    for batch_size in batch_sizes:
        for temperature in TEMPERATURES:
            repetitions = Repetitions(tuple(llms))
            outputs: dict[str, list[CompletionOutput]] = {name: [] for name in llms}
            tallies = {name: Tally(stats=[llm.engine.stats]) for name, llm in llms.items()}
            for llm in llms.values():
                llm.engine.stats.reset()
            how = partial(_params, temperature=temperature)
            label = f"batch {batch_size}, temperature {temperature:g}:"
            for first in range(0, len(prefixes), _ANSWERS):
                some = prefixes[first : first + _ANSWERS]
                parts = {name: partial(complete, llm, some, batch_size, how) for name, llm in llms.items()}
                for name, found in repetitions.run(parts, tick, label).items():
                    outputs[name] += found
                    tallies[name].add(found)
            costs = _grammar_costs(llms[plain], outputs[plain])
            for name, own in outputs.items():
                ratio = repetitions.estimate(name)
                yield {
                    "method": "plain" if name == plain else name,
                    "batch": batch_size,
                    "temperature": temperature,
                    "numerics": llms[name].numerics_id,
                    "grammar_us_per_token": {"mean": 1e6 * mean(costs), "median": 1e6 * median(costs)},
                    "speed_up": ratio.median,
                    "interval": ratio.interval,
                    **tallies[name].row(repetitions.seconds[name], tallies[plain]),
                    **_row(own),
                }


def _form(number: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(json=SCHEMAS[number % len(SCHEMAS)], disable_any_whitespace=True)


def _params(prompt: Prefix, temperature: float) -> SamplingParams:
    form, number = _form(prompt.number), prompt.number
    return SamplingParams(temperature=temperature, seed=number, max_tokens=MAX_TOKENS, structured_outputs=form)


def _row(outputs: list[CompletionOutput]) -> dict[str, Any]:
    stopped = [o for o in outputs if o.finish_reason == "stop"]
    for output in stopped:
        json.loads(output.text)
    return {
        "forced_share": sum(o.sources.count("grammar") for o in outputs) / sum(o.metrics.emitted for o in outputs),
        "stopped": len(stopped) / len(outputs),
    }


def _grammar_costs(llm: LLM, outputs: list[CompletionOutput]) -> list[float]:
    """Return the seconds that the grammar took for each token of some answers."""
    config = describe_model(llm.engine.config.model)
    grammars = Grammars(llm.engine.codec.tokenizer, config.vocab_size, config.eos_token_ids)
    costs = []
    for number, output in enumerate(outputs):
        constraint = grammars.start(_form(number))
        for i in range(len(output.token_ids)):
            known = output.token_ids[:i]
            row = torch.zeros(config.vocab_size)
            began = perf_counter()
            constraint.forced(known)
            constraint.process(known, (), row)
            costs.append(perf_counter() - began)
    return costs


main = partial(start, "structured", __doc__, _add_flags, _run)  # its exit status is 1 if a token differs

if __name__ == "__main__":
    sys.exit(main())
