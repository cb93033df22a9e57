"""Answers to JSON schemas: plain decoding under a grammar against every proposer under the same one, interleaved."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import torch

from parlay.bench.contenders import contenders, engines
from parlay.bench.paired import Turns, estimate
from parlay.bench.prompts import read_prompts
from parlay.bench.protocol import TEMPERATURES, Prefix, load_prefixes
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.sampling.grammar import Grammars
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams
from parlay.types.structured import StructuredOutputsParams

MAX_TOKENS = 96
_ROUND = 16  # answers that each method gives before the next has its turn


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


def measure(
    model: str,
    batch_sizes: tuple[int, ...],
    requests: int,
    length: int | None,
    tick: Callable[[str], None],
    dataset: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one row a batch size, temperature and method.

    Request i continues prompt i with schema i mod 4 and seed i, without white space between the parts.
    Methods take turns every few requests; see `parlay.bench.paired`. What the grammar costs is
    measured on the answers given, token by token: the mask with its application and the search for forced tokens.

    Args:
        model: the target; without a dataset `tiny-code`, or a model with its vocabulary.
        batch_sizes: how many requests run at once.
        requests: how many.
        length: nodes a draft; None takes each proposer's default.
        tick: called with a label before every round.
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
        _complete(llm, prefixes[:most], most, 0.8)  # warm-up; compiles the grammars too
    for batch_size in batch_sizes:
        for temperature in TEMPERATURES:
            turns = Turns(tuple(llms))
            outputs: dict[str, list[CompletionOutput]] = {name: [] for name in llms}
            label = f"batch {batch_size}, temperature {temperature:g}:"
            for start in range(0, len(prefixes), _ROUND):
                asked = prefixes[start : start + _ROUND]
                parts = {name: partial(_complete, llm, asked, batch_size, temperature) for name, llm in llms.items()}
                for name, found in turns.take(parts, tick, label).items():
                    outputs[name] += found
            costs = _grammar_costs(llms[plain], outputs[plain])
            for name, own in outputs.items():
                ratio = estimate(turns.ratios(name))
                yield {
                    "method": "plain" if name == plain else name,
                    "batch": batch_size,
                    "temperature": temperature,
                    "numerics": llms[name].numerics_id,
                    "grammar_us_per_token": {"mean": 1e6 * mean(costs), "median": 1e6 * median(costs)},
                    "speed_up": ratio.median,
                    "interval": ratio.interval,
                    "tokens_per_s": sum(o.metrics.emitted for o in own) / sum(turns.seconds[name]),
                    **_row(own),
                    "same_tokens": [o.token_ids for o in own] == [o.token_ids for o in outputs[plain]],
                }


def _form(number: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(json=SCHEMAS[number % len(SCHEMAS)], disable_any_whitespace=True)


def _complete(llm: LLM, prefixes: list[Prefix], batch_size: int, temperature: float) -> list[CompletionOutput]:
    outputs = []
    for start in range(0, len(prefixes), batch_size):
        batch = prefixes[start : start + batch_size]
        params = [
            SamplingParams(
                temperature=temperature, seed=p.number, max_tokens=MAX_TOKENS, structured_outputs=_form(p.number)
            )
            for p in batch
        ]
        results = llm.generate([p.tokens for p in batch], params, use_tqdm=False)
        outputs += [r.outputs[0] for r in results]
    return outputs


def _row(outputs: list[CompletionOutput]) -> dict[str, Any]:
    metrics = [o.metrics for o in outputs]
    emitted, drafted = sum(m.emitted for m in metrics), sum(m.drafted for m in metrics)
    stopped = [o for o in outputs if o.finish_reason == "stop"]
    for output in stopped:
        json.loads(output.text)
    return {
        "acceptance_length": emitted / sum(m.steps for m in metrics),
        "acceptance_rate": sum(m.accepted for m in metrics) / drafted if drafted else None,
        "forced_share": sum(o.sources.count("grammar") for o in outputs) / emitted,
        "stopped": len(stopped) / len(outputs),
    }


def _grammar_costs(llm: LLM, outputs: list[CompletionOutput]) -> list[float]:
    """Return the seconds that the grammar took for each token of some answers."""
    config = describe_model(llm.engine.config.model)
    grammars = Grammars(llm.engine.codec.to_str, config.vocab_size, config.eos_token_ids)
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
