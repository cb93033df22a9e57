"""How the engine speculates."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parlay.errors import ConfigError, shown

DETECTED = "auto"
LENGTHS = ("fixed", "goodput")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Which proposer guesses, how far, and its own options.

    Attributes:
        method: name of a module in `parlay.proposers`, or "auto": what the checkpoint `model` is for.
        num_speculative_tokens: at most this many nodes a draft; None takes the proposer's own default.
        lengths: "fixed" drafts as much as it may; "goodput" as much as raises the expected tokens per second, by
            measured cost and acceptance, which may be nothing.
        options: keys that the proposer's `Options` declares; checked when the proposer is found.
    """

    method: str = "none"
    num_speculative_tokens: int | None = None
    lengths: str = "fixed"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        k = self.num_speculative_tokens
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
            raise ConfigError(
                f"num_speculative_tokens must be an integer of at least 1, not {shown(k)}; "
                "to decode plainly leave speculative_config out"
            )

        if self.lengths not in LENGTHS:
            raise ConfigError(f"lengths must be {' or '.join(LENGTHS)}, not {shown(self.lengths)}")

    @classmethod
    def parse(cls, value: "SpeculativeConfig | Mapping[str, Any] | str | None") -> "SpeculativeConfig":
        """Return a config from a mapping in vLLM's form, its JSON, or None for plain decoding.

        Raises:
            ConfigError: not a mapping, no method, or a draft length below 1.
        """
        if value is None:
            return cls()
        if isinstance(value, SpeculativeConfig):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"speculative_config is not valid JSON: {error}") from None
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"speculative_config must be a mapping such as {{'method': 'ngram'}}, not {shown(value)}"
            )
        options = dict(value)
        method = options.pop("method", None)
        if method is None and "model" in options:
            method = DETECTED
        if not isinstance(method, str):
            raise ConfigError("speculative_config needs a 'method', for example {'method': 'ngram'}")
        k = options.pop("num_speculative_tokens", None)
        lengths = options.pop("lengths", "fixed")
        return cls(method=method, num_speculative_tokens=k, lengths=lengths, options=options)
