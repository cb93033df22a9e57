"""The evaluation protocol, frozen with the embedded model: every figure about it is measured this way.

512 held-out prefixes of 128 tokens each; 32 tokens are generated after each, end-of-sequence ignored, at temperature
0 and 0.8 with the prefix's number as seed. The share of repeated 8-grams in what was generated is reported beside
every figure, because a small model that loops flatters every proposer.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parlay.checkpoints.find import ASSETS
from parlay.types.params import SamplingParams

TOKENS = 32
TEMPERATURES = (0.0, 0.8)
_GRAM = 8


@dataclass(frozen=True, slots=True)
class Prefix:
    """One held-out prefix."""

    number: int
    tokens: tuple[int, ...]


def load_prefixes(count: int | None = None) -> list[Prefix]:
    """Return the first `count` prefixes, all by default."""
    with (ASSETS / "evaluation" / "prefixes.jsonl").open() as file:
        rows = [json.loads(line) for line in file]
    return [Prefix(i, tuple(row["token_ids"])) for i, row in enumerate(rows)][:count]


def params_for(prefix: Prefix, temperature: float) -> SamplingParams:
    """Return the protocol's sampling parameters for a prefix."""
    return SamplingParams(temperature=temperature, seed=prefix.number, max_tokens=TOKENS, ignore_eos=True)


def repeated_share(outputs: Iterable[Sequence[int]]) -> float:
    """Return the share of 8-grams that occurred before in the same output."""
    total = repeated = 0
    for tokens in outputs:
        grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
        total += len(grams)
        repeated += len(grams) - len(set(grams))
    return repeated / total if total else 0.0
