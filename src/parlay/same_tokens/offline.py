"""The same-tokens guarantee on a user's model: a few prompts decoded in every way, and whether anything changes.

Token ids and the bits of their log-probabilities must not change. The reference is plain decoding of each prompt
alone, whole, with nothing cached.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parlay.config import SpeculativeConfig
from parlay.config.speculative import PLAIN
from parlay.config.verification import COUPLED
from parlay.errors import ConfigError, ModelError, RequestError
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.proposers.select import embedded_configs
from parlay.same_tokens.difference import ComparedAnswer, first_difference
from parlay.same_tokens.sampled_distribution import check_distribution
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

PROMPTS: tuple[str | tuple[int, ...], ...] = (
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n",
    "one two three four one two three four one two three four one two",
    'import json\n\n\ndef load(path):\n    """Read a file.\n',
    "The",
)
KINDS: Mapping[str, SamplingParams] = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "penalties": SamplingParams(
        temperature=1.1, presence_penalty=0.4, frequency_penalty=0.2, repetition_penalty=1.1, top_p=0.95, min_p=0.01
    ),
    "stop strings": SamplingParams(temperature=0.8, stop=["\n\n", " the "], top_k=40),
    "grammar": SamplingParams(temperature=0.8, structured_outputs={"regex": "[a-z]+(, [a-z]+){3,30}"}),
}
QUICK = ("temperature 0", "temperature 0.8", "penalties")
UNION = "tree of ngram, suffix and self"
_LONGEST = 1024  # tokens per sequence: a cache for more would only take memory
_EVERY = 3  # steps between two preemptions, or two arrivals
_OFF = ((2, 2, 0),)  # nothing is drafted for two requests at once


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared.

    Attributes:
        prompts: texts or token ids.
        kinds: parameters by name.
        max_tokens: length of each completion.
        draws: completions that the sampled distribution is tested with; 0 for no test.
    """

    prompts: Sequence[str | tuple[int, ...]] = PROMPTS
    kinds: Mapping[str, SamplingParams] = field(default_factory=lambda: KINDS)
    max_tokens: int = 32
    draws: int = 2000


def compare(
    model: str,
    comparison: Comparison,
    *,
    dtype: str = "auto",
    dequantize: bool = False,
    device: str = "cpu",
    speculative: Mapping[str, SpeculativeConfig] | None = None,
    tick: Callable[[str], None] = lambda label: None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each method, way and kind of parameters: whether all completions are those of plain decoding.

    Of all proposers, one that this model cannot be served with gives one row with the reason.

    Args:
        model: a directory or the name of an embedded model.
        comparison: prompts and parameters.
        dtype, dequantize, device: options of the engine, see `EngineConfig`.
        speculative: configs by name, plain decoding's first; None takes every proposer with the embedded model's
            options, `auto`, and a tree of several methods' drafts, verified as far as there is room.
        tick: function called with a label before every row.

    Raises:
        ConfigError, ModelError, CapacityError: the model cannot be served, plainly or as `speculative` says.
    """
    configs = _all_methods() if speculative is None else speculative
    plain = next(iter(configs))
    length = min(describe_model(model).max_position, _LONGEST)
    options: dict[str, Any] = {"dtype": dtype, "dequantize": dequantize, "device": device}
    options |= {"max_model_len": length, "use_tqdm_on_load": False}
    expected: dict[str, list[CompletionOutput]] = {}
    for name, config in configs.items():
        tick(f"{name}: loading")
        label = "plain" if name == plain else name
        try:
            llm = LLM(model, speculative_config=config, enable_prefix_caching=False, **options)
        except (ConfigError, ModelError) as error:
            if name == plain or speculative is not None:
                raise
            yield {"method": label, "skipped": str(error)}
            continue
        if name == plain:
            for kind, params in _params(comparison).items():
                try:
                    expected[kind] = _alone(llm, comparison.prompts, params)
                except RequestError as error:  # a tokenizer without support for grammars
                    yield {"method": label, "skipped": f"{kind}: {error}"}
        # Steps of 24 rows split the longer prompts, and blocks of 5 tokens the rest; drafts have their full length,
        # for which four requests leave room.
        eager = replace(config, lengths="fixed", num_speculative_tokens_per_batch_size=_alternating_limits(config))
        chunks = LLM(
            model, speculative_config=eager, max_num_batched_tokens=24, max_num_seqs=4, block_size=5, **options
        )
        kinds = _comparable(expected, comparison, config)
        yield from _compare_ways(llm, chunks, comparison, {kind: expected[kind] for kind in kinds}, label, tick)
        if comparison.draws:
            tick(f"{name}: {comparison.draws} draws")
            prompt = comparison.prompts[len(comparison.prompts) // 2]
            for row in check_distribution(chunks, prompt, comparison.draws):
                yield {"method": label, "way": "sampled distribution", **row}


def _compare_ways(
    llm: LLM,
    chunks: LLM,
    comparison: Comparison,
    expected: Mapping[str, list[CompletionOutput]],
    label: str,
    tick: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each way to run the prompts and kind of parameters."""
    for way, engine, complete in (
        ("alone", llm, _alone),
        ("together", llm, _together),
        ("in chunks", chunks, _together),
        ("from the cache", chunks, _together),
        ("preempted", chunks, _preempted),
        ("switched", chunks, _arriving),
    ):
        for kind, right in expected.items():
            tick(f"{label}: {way}, {kind}")
            found = complete(engine, comparison.prompts, _params(comparison)[kind])
            difference = first_difference([*map(compared, found)], [*map(compared, right)])
            yield {
                "method": label,
                "way": way,
                "parameters": kind,
                "same": difference is None,
                "difference": difference,
                "tokens": sum(len(c.token_ids) for c in found),
                "accepted": sum(c.metrics.accepted for c in found),
            }


def _all_methods() -> dict[str, SpeculativeConfig]:
    tree = {"width": 2, "depth": 3}
    union: list[dict[str, Any]] = [{"method": "auto", "lengths": "fixed", "tree": tree}, {"method": "self"}]
    return embedded_configs() | {"auto": SpeculativeConfig(), UNION: SpeculativeConfig.parse(union)}


def _alternating_limits(config: SpeculativeConfig) -> tuple[tuple[int, int, int], ...] | None:
    """Return limits on drafts by number of requests, so that they go on and off while requests come and leave."""
    given = config.num_speculative_tokens_per_batch_size
    return _OFF if given is None and config.method != PLAIN else given


def compared(completion: CompletionOutput) -> ComparedAnswer:
    """Return what is compared of a completion."""
    assert completion.logprobs is not None
    return ComparedAnswer(
        tokens=completion.token_ids,
        logprobs=tuple([(token, entry.logprob.hex()) for token, entry in one.items()] for one in completion.logprobs),
        likely=tuple({token: entry.logprob for token, entry in one.items()} for one in completion.logprobs),
    )


def _params(comparison: Comparison) -> dict[str, list[SamplingParams]]:
    """Return the parameters of each prompt, by kind."""
    return {
        kind: [
            replace(
                params, seed=i, max_tokens=comparison.max_tokens, logprobs=3, ignore_eos=not params.structured_outputs
            )
            for i in range(len(comparison.prompts))
        ]
        for kind, params in comparison.kinds.items()
    }


def _comparable(kinds: Collection[str], comparison: Comparison, config: SpeculativeConfig) -> list[str]:
    """Return the kinds of parameters for which verification guarantees the same tokens: all, or the greedy ones."""
    greedy = [kind for kind in kinds if not comparison.kinds[kind].temperature]
    return list(kinds) if config.verification == COUPLED else greedy


def _alone(llm: LLM, prompts: Sequence[Any], params: list[SamplingParams]) -> list[CompletionOutput]:
    pairs = zip(prompts, params, strict=True)
    return [llm.generate(prompt, own, use_tqdm=False)[0].outputs[0] for prompt, own in pairs]


def _together(llm: LLM, prompts: Sequence[Any], params: list[SamplingParams]) -> list[CompletionOutput]:
    return [output.outputs[0] for output in llm.generate(list(prompts), params, use_tqdm=False)]


def _arriving(llm: LLM, prompts: Sequence[Any], params: list[SamplingParams]) -> list[CompletionOutput]:
    """Add one request after another while they run."""
    engine, steps, waiting = llm.engine, 0, list(zip(prompts, params, strict=True))
    requests = []
    while waiting or engine.busy:
        if waiting and steps % _EVERY == 0:
            requests.append(engine.add(*waiting.pop(0))[0])
        if engine.busy:
            engine.step()
        steps += 1
    return [engine.completion(request, 0) for request in requests]


def _preempted(llm: LLM, prompts: Sequence[Any], params: list[SamplingParams]) -> list[CompletionOutput]:
    """Take all blocks of one request after another while they run."""
    engine, steps = llm.engine, 0
    requests = [engine.add(prompt, own)[0] for prompt, own in zip(prompts, params, strict=True)]
    while engine.busy:
        engine.step()
        steps += 1
        victim = requests[steps // _EVERY % len(requests)]
        if steps % _EVERY == 0 and victim.finish_reason is None and victim.table.blocks:
            engine.preempt(victim)
    return [engine.completion(request, 0) for request in requests]
