"""What a user may ask of one request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from parlay.errors import ConfigError, RequestError, nearest

# Logits over a colder temperature overflow float32; over a hotter one they are all alike.
COLDEST, HOTTEST = 1e-5, 1e5
# Each completion is a request of its own; each reported log-probability is kept until the end.
MOST_COMPLETIONS, MOST_LOGPROBS = 1024, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOverride:
    """A request's own wish about speculation, within what the engine was started with.

    Attributes:
        enabled: False decodes this request plainly.
        num_speculative_tokens: at most this many tokens a draft; None keeps the engine's number.
        method: who guesses, of the methods that the engine has loaded; `none` decodes plainly, None leaves it to the
            engine.
    """

    enabled: bool = True
    num_speculative_tokens: int | None = None
    method: str | None = None

    def __post_init__(self) -> None:
        _boolean("enabled", self.enabled)
        k = self.num_speculative_tokens
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
            raise RequestError(
                f"num_speculative_tokens must be an integer of at least 1, not {k!r}; "
                "to decode plainly set enabled to false"
            )
        if self.method is not None and not isinstance(self.method, str):
            raise RequestError(f"method must be the name of a loaded speculative method, not {self.method!r}")

    @classmethod
    def parse(cls, value: "SpeculationOverride | Mapping[str, Any]") -> "SpeculationOverride":
        """Return `value` as an override.

        Raises:
            RequestError: an unknown key or a value out of range.
        """
        if isinstance(value, SpeculationOverride):
            return value
        if not isinstance(value, Mapping):
            raise RequestError(f"speculative must be a mapping such as {{'enabled': False}}, not {value!r}")
        known = {f.name for f in fields(cls)}
        for key in value:
            if key not in known:
                raise RequestError(f"unknown key {key!r} in speculative{nearest(str(key), known)}")
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen. Names and defaults are vLLM's where both have the parameter.

    Attributes:
        n: how many completions of the prompt to give; completion j samples with its own seed.
        temperature: 0 is greedy, and so is anything below 1e-5; otherwise logits are divided by it.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        top_k: keep this many of the most likely tokens; 0 or -1 keeps all.
        min_p: keep tokens at least this likely relative to the most likely one.
        seed: 64-bit seed of the request's noise; None derives one from the engine's seed and arrival order.
        max_tokens: emit at most this many tokens; None goes on to the context limit.
        stop: strings that end the text; the text is cut before them.
        stop_token_ids: further tokens that end the output, kept in `token_ids`.
        ignore_eos: do not stop at the model's end-of-sequence tokens.
        logprobs: report the log-probability of each emitted token and of this many most likely ones.
        skip_special_tokens: leave special tokens out of the text.
        speculative: this request's own wish about speculation.

    Raises:
        RequestError: a value is out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | tuple[str, ...] | list[str] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    speculative: SpeculationOverride | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        def fix(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        fix("n", _integer("n", self.n, 1, MOST_COMPLETIONS))
        temperature = _real("temperature", self.temperature, 0.0, HOTTEST)
        fix("temperature", temperature if temperature >= COLDEST else 0.0)
        fix("top_p", _real("top_p", self.top_p, 0.0, 1.0))
        if self.top_p == 0.0:
            raise RequestError("top_p must be above 0; for the most likely token alone set temperature to 0")
        fix("top_k", _integer("top_k", self.top_k, -1))
        fix("min_p", _real("min_p", self.min_p, 0.0, 1.0))
        if self.seed is not None:
            fix("seed", _integer("seed", self.seed, -(1 << 63), (1 << 64) - 1))
        if self.max_tokens is not None:
            fix("max_tokens", _integer("max_tokens", self.max_tokens, 1))
        if self.logprobs is not None:
            fix("logprobs", _integer("logprobs", self.logprobs, 0, MOST_LOGPROBS))
        for name in ("ignore_eos", "skip_special_tokens"):
            _boolean(name, getattr(self, name))
        stop = (self.stop,) if isinstance(self.stop, str) else _tuple("stop", self.stop)
        if not all(isinstance(s, str) and s for s in stop):
            raise RequestError("stop must be strings of at least one character")
        fix("stop", stop)
        ids = _tuple("stop_token_ids", self.stop_token_ids)
        fix("stop_token_ids", tuple(_integer("stop_token_ids", token, 0) for token in ids))
        if self.speculative is not None:
            fix("speculative", SpeculationOverride.parse(self.speculative))

    @property
    def filters(self) -> bool:
        """Whether any parameter removes tokens from the distribution."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> "SamplingParams":
        """Return parameters from a mapping of names to values.

        Raises:
            ConfigError: an unknown key; the message suggests the nearest known one.
            RequestError: a value is out of range.
        """
        known = {f.name for f in fields(cls)}
        for key in value:
            if key not in known:
                raise ConfigError(f"unknown sampling parameter {key!r}{nearest(key, known)}")
        return cls(**value)


def _integer(name: str, value: object, low: int, high: int | None = None) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RequestError(f"{name} must be an integer, not {value!r}")
    number = int(value)
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} must be {bounds}, not {number}")
    return number


def _real(name: str, value: object, low: float, high: float) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise RequestError(f"{name} must be a number, not {value!r}")
    number = float(value)
    if not low <= number <= high:
        raise RequestError(f"{name} must be between {low:g} and {high:g}, not {number}")
    return number


def _boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, not {value!r}")


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise RequestError(f"{name} must be a list, not {value!r}")
    return tuple(value)
