"""The first promise on a model of the user's: a few prompts decoded in every way, and whether anything changes.

What must not change is token ids and the bits of their log-probabilities. What they are compared with is plain
decoding of each prompt alone, whole, with nothing cached.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parlay.config import SpeculativeConfig
from parlay.errors import ConfigError, ModelError
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.proposers.select import embedded_configs
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

TEMPERATURES = (0.0, 0.8)
PROMPTS = (
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n",
    "one two three four one two three four one two three four one two",
    'import json\n\n\ndef load(path):\n    """Read a file.\n',
    "The",
)
_LONGEST = 1024  # tokens a sequence: a cache for more would only take memory


def compare(
    model: str,
    *,
    dtype: str = "auto",
    dequantize: bool = False,
    max_tokens: int = 32,
    speculative: Mapping[str, SpeculativeConfig] | None = None,
    tick: Callable[[str], None] = lambda label: None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each method, way and temperature: whether all completions are those of plain decoding.

    Of all proposers, one that this model cannot be served with gives one row that says why.

    Args:
        model: a directory or the name of an embedded model.
        dtype: as in `EngineConfig`.
        dequantize: likewise.
        max_tokens: length of each completion.
        speculative: configs by name, plain decoding's first; None takes every proposer with the embedded model's
            options.
        tick: called with a label before every row.

    Raises:
        ConfigError, ModelError, CapacityError: the model cannot be served, plainly or as `speculative` says.
    """
    configs = embedded_configs() if speculative is None else speculative
    plain = next(iter(configs))
    length = min(describe_model(model).max_position, _LONGEST)
    options = {"dtype": dtype, "dequantize": dequantize, "max_model_len": length, "max_num_seqs": len(PROMPTS)}
    options["use_tqdm_on_load"] = False
    expected: dict[float, list[CompletionOutput]] = {}
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
            expected = {t: _alone(llm, _params(t, max_tokens)) for t in TEMPERATURES}
        ways = [("alone", llm, _alone), ("together", llm, _together)]
        # Steps of 24 rows cut the longer prompts, and blocks of 5 tokens the rest.
        chunks = LLM(model, speculative_config=config, max_num_batched_tokens=24, block_size=5, **options)
        ways += [("in chunks", chunks, _together), ("from the cache", chunks, _together)]
        for way, engine, complete in ways:
            for temperature in TEMPERATURES:
                tick(f"{name}: {way}, temperature {temperature:g}")
                found = complete(engine, _params(temperature, max_tokens))
                difference = first_difference(found, expected[temperature])
                yield {
                    "method": label,
                    "way": way,
                    "temperature": temperature,
                    "same": difference is None,
                    "difference": difference,
                    "tokens": sum(len(c.token_ids) for c in found),
                    "accepted": sum(c.metrics.accepted for c in found),
                }


def first_difference(found: list[CompletionOutput], expected: list[CompletionOutput]) -> str | None:
    """Return where two lists of completions part, or None."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        for j, (x, y) in enumerate(zip(a.token_ids, b.token_ids, strict=False)):
            if x != y:
                return f"prompt {i}, token {j}: {x} instead of {y}"
            if _bits(a, j) != _bits(b, j):
                return f"prompt {i}, token {j}: log-probabilities"
        if len(a.token_ids) != len(b.token_ids):
            return f"prompt {i}: {len(a.token_ids)} tokens instead of {len(b.token_ids)}"
    return None


def _bits(completion: CompletionOutput, position: int) -> list[tuple[int, str]]:
    assert completion.logprobs is not None
    return [(token, entry.logprob.hex()) for token, entry in completion.logprobs[position].items()]


def _params(temperature: float, max_tokens: int) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=temperature, seed=i, max_tokens=max_tokens, ignore_eos=True, logprobs=3)
        for i in range(len(PROMPTS))
    ]


def _alone(llm: LLM, params: list[SamplingParams]) -> list[CompletionOutput]:
    pairs = zip(PROMPTS, params, strict=True)
    return [llm.generate(prompt, own, use_tqdm=False)[0].outputs[0] for prompt, own in pairs]


def _together(llm: LLM, params: list[SamplingParams]) -> list[CompletionOutput]:
    return [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
