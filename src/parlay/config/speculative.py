"""How the engine speculates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.config.strict import build
from parlay.errors import ConfigError, shown

PLAIN = "none"
AUTO = "auto"
LENGTHS = ("goodput", "latency", "fixed")

_EXAMPLE = "{'method': 'ngram'}"


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Which proposers guess, how far, and their own options.

    Attributes:
        method: name of a module in `parlay.proposers`; "auto" for every one that needs no weights of its own, and the
            one that the checkpoint `model` is for, if there is one; None for the latter alone.
        num_speculative_tokens: at most this many nodes a draft; None takes each proposer's own default.
        lengths: what lengths are chosen for, from measured cost and acceptance, down to nothing: "goodput", most
            tokens per second of all requests together, or "latency", the shortest time of each one, which "goodput"
            chooses too while none waits for a place. "fixed" chooses nothing and drafts as much as it may.
        disable_by_batch_size: with more requests than this at once nothing is drafted; None for no such limit.
        num_speculative_tokens_per_batch_size: `(first, last, nodes)`, ascending: with so many requests at once a
            draft has at most so many nodes. Between and beyond these `num_speculative_tokens` counts.
        remember_responses: whether a proposer may guess from responses to earlier requests of the same tenant. None
            means yes, except in a server without API keys, which cannot tell its clients apart.
        options: keys that the proposers' `Options` declare; checked when the proposers are found.
    """

    method: str | None = AUTO
    num_speculative_tokens: int | None = None
    lengths: str = "goodput"
    disable_by_batch_size: int | None = None
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    remember_responses: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_length(self.num_speculative_tokens)
        if self.lengths not in LENGTHS:
            raise ConfigError(
                f"lengths must be {', '.join(LENGTHS[:-1])} or {LENGTHS[-1]}, not {shown(self.lengths)}"
            )
        if self.disable_by_batch_size is not None and self.disable_by_batch_size < 0:
            raise ConfigError(f"disable_by_batch_size must be at least 0, not {self.disable_by_batch_size}")
        _check_ranges(self.num_speculative_tokens_per_batch_size or ())

    def most_nodes(self, batch_size: int) -> int | None:
        """Return how many nodes a draft may have at most with so many requests at once; None for no such limit."""
        if self.disable_by_batch_size is not None and batch_size > self.disable_by_batch_size:
            return 0
        for first, last, nodes in self.num_speculative_tokens_per_batch_size or ():
            if first <= batch_size <= last:
                return nodes
        return None

    @classmethod
    def parse(cls, value: "SpeculativeConfig | Mapping[str, Any] | str | None") -> "SpeculativeConfig":
        """Return a config from a mapping in vLLM's form, its JSON, or None for plain decoding.

        Raises:
            ConfigError: not a mapping, no method, or a value out of range.
        """
        if isinstance(value, SpeculativeConfig):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"speculative_config is not valid JSON: {error}") from None
        if value is None:
            return plain()
        if not isinstance(value, Mapping):
            raise ConfigError(f"speculative_config must be a mapping such as {_EXAMPLE}, not {shown(value)}")
        given = dict(value)
        method = given.get("method")
        if not isinstance(method, str) and (method is not None or given.get("model") is None):
            raise ConfigError(f"speculative_config needs a 'method', for example {_EXAMPLE}")
        _check_length(given.get("num_speculative_tokens"))
        own = {key: given.pop(key) for key in _OWN & given.keys()}
        return build(cls, {"method": None, **own, "options": given}, "speculative_config key")


_OWN = frozenset(SpeculativeConfig.__dataclass_fields__) - {"options"}


def plain() -> SpeculativeConfig:
    """Return the config of plain decoding."""
    return SpeculativeConfig(PLAIN)


def _check_length(k: object) -> None:
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise ConfigError(
            f"num_speculative_tokens must be an integer of at least 1, not {shown(k)}; "
            "to decode plainly write the method 'none'"
        )


def _check_ranges(ranges: Sequence[tuple[int, int, int]]) -> None:
    before = 0
    for first, last, nodes in ranges:
        if not before < first <= last or nodes < 0:
            raise ConfigError(
                "num_speculative_tokens_per_batch_size must hold [first, last, nodes], ascending from batch size 1 "
                f"on and without overlap, such as [[1, 4, 5], [5, 16, 2]], not {shown(list(map(list, ranges)))}"
            )
        before = last


# What an engine does whose user says nothing about speculation: whoever guesses without weights of its own, as far
# as it pays.
DEFAULT = SpeculativeConfig()
