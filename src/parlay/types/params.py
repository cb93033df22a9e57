"""What a user may ask of one request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from math import inf
from numbers import Integral, Real
from typing import Any

from parlay.errors import ConfigError, RequestError, nearest, shown
from parlay.types.processor import LogitsProcessor
from parlay.types.structured import StructuredOutputsParams

# Logits over a colder temperature overflow float32; over a hotter one they are all alike.
COLDEST, HOTTEST = 1e-5, 1e5
# Each completion is a request of its own; each reported log-probability is kept until the end.
MOST_COMPLETIONS, MOST_LOGPROBS = 1024, 1000
MOST_BIAS = 100.0
MOST_KEPT = (1 << 63) - 1  # a step holds top_k in 64 bits, and no vocabulary is larger


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
                f"num_speculative_tokens must be an integer of at least 1, not {shown(k)}; "
                "to decode plainly set enabled to false"
            )
        if self.method is not None and not isinstance(self.method, str):
            raise RequestError(f"method must be the name of a loaded speculative method, not {shown(self.method)}")

    @classmethod
    def parse(cls, value: "SpeculationOverride | Mapping[str, Any]") -> "SpeculationOverride":
        """Return `value` as an override.

        Raises:
            RequestError: an unknown key or a value out of range.
        """
        if isinstance(value, SpeculationOverride):
            return value
        if not isinstance(value, Mapping):
            raise RequestError(f"speculative must be a mapping such as {{'enabled': False}}, not {shown(value)}")
        known = {f.name for f in fields(cls)}
        for key in value:
            if key not in known:
                raise RequestError(f"unknown key {shown(key)} in speculative{nearest(key, known)}")
        return cls(**value)


def _check_names(cls: type, values: Mapping[str, Any]) -> None:
    known = {f.name for f in fields(cls)}
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown sampling parameter {shown(key)}{nearest(key, known)}")


def _names_checked(cls: type) -> type:
    """Return a dataclass whose constructor says which name was meant, as `parse` does."""
    construct = cls.__init__  # type: ignore[misc]

    @wraps(construct)
    def checked(self: object, *positional: Any, **values: Any) -> None:
        _check_names(cls, values)
        construct(self, *positional, **values)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawParams:
    """Those of a request's parameters that decide how a token is drawn from processed logits, and what is reported.

    Attributes:
        temperature, top_p, top_k, min_p, prompt_logprobs: as in `SamplingParams`.
        scored: how many log-probabilities to compute beside each emitted token's own; None to compute none at all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    scored: int | None = None
    prompt_logprobs: int | None = None

    @property
    def filters(self) -> bool:
        """Whether any parameter removes tokens from the distribution."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


@_names_checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen. Names and defaults are vLLM's where both have the parameter.

    Logits go through, in this order: repetition, frequency and presence penalty; `logit_bias`; `logits_processors`;
    what `allowed_token_ids`, `min_tokens` and `bad_words` forbid; temperature; `min_p`; `top_k`; `top_p`. With
    speculation they go through the same, each along its own path.

    Example:
        >>> SamplingParams(temperature=0.8, top_p=0.95, max_tokens=64, stop="\\n\\n", seed=1)
        >>> SamplingParams(temperature=0, repetition_penalty=1.1, bad_words=["foo", "bar baz"])
        >>> SamplingParams(allowed_token_ids=[5, 7, 9], logit_bias={7: 1.5}, max_tokens=1, logprobs=3)
        >>> SamplingParams(n=2, best_of=5, max_tokens=32)

    Attributes:
        n: how many completions of the prompt to give; completion j samples with its own seed.
        best_of: sample this many and give the `n` of the highest cumulative log-probability, best first; None
            samples `n`.
        presence_penalty: subtracted from the logits of tokens that the output has; -2 to 2.
        frequency_penalty: subtracted for each time the output has the token; -2 to 2.
        repetition_penalty: divides positive logits and multiplies negative ones of tokens that prompt or output
            have; above 1 discourages, 1 does nothing.
        temperature: 0 is greedy, and so is anything below 1e-5; otherwise logits are divided by it.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        top_k: keep this many of the most likely tokens; 0 or -1 keeps all.
        min_p: keep tokens at least this likely relative to the most likely one.
        seed: 64-bit seed of the request's noise; None derives one from the engine's seed and arrival order.
        max_tokens: emit at most this many tokens; None goes on to the context limit.
        min_tokens: forbid end-of-sequence tokens and `stop_token_ids` until the output has this many tokens, and
            find no stop string in them.
        stop: strings that end the text; the text is cut before them.
        include_stop_str_in_output: cut the text behind the stop string, or behind the text of the stop token.
        stop_token_ids: further tokens that end the output, kept in `token_ids`.
        ignore_eos: do not stop at the model's end-of-sequence tokens.
        bad_words: texts whose tokens may not occur in the output one after another, at the beginning of a word or
            within; other tokens that spell the same text may. Where nothing but the end of a bad word is left, it is
            emitted.
        allowed_token_ids: no other tokens are emitted; None allows all.
        logit_bias: added to these token ids' logits, each between -100 and 100.
        logits_processors: functions that are given the output's token ids and the logits of the next token, `[vocab]`
            float32, and return logits; called once for each emitted token.
        logprobs: report the log-probability of each emitted token and of this many most likely ones; whether before
            or after processing is the engine's `logprobs_mode`.
        prompt_logprobs: the same for each token of the prompt but the first, always before processing; such a prompt
            is computed whole, cached or not.
        skip_special_tokens: leave special tokens out of the text.
        structured_outputs: the form of the answer, such as a JSON schema; it then ends by itself.
        prediction: a text that the output will mostly repeat, such as a file before an edit, or its token ids. It
            makes a good guess fast and changes no token; any engine takes it, also one without a proposer.
        speculative: this request's own wish about speculation.
        return_rejected: tell which guesses were rejected, and where.

    Raises:
        ConfigError: an unknown name; the message suggests the nearest known one.
        RequestError: a value is out of range.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | tuple[str, ...] | list[str] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    bad_words: str | tuple[str, ...] | list[str] = ()
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    logits_processors: tuple[LogitsProcessor, ...] | list[LogitsProcessor] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    prediction: str | Sequence[int] | None = None
    speculative: SpeculationOverride | Mapping[str, Any] | None = None
    return_rejected: bool = False

    def __post_init__(self) -> None:
        def fix(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        fix("n", _integer("n", self.n, 1, MOST_COMPLETIONS))
        if self.best_of is not None:
            fix("best_of", _integer("best_of", self.best_of, 1, MOST_COMPLETIONS))
            if self.best_of < self.n:
                raise RequestError(f"best_of={self.best_of} is below n={self.n}; raise it")
        temperature = _real("temperature", self.temperature, 0.0, HOTTEST)
        fix("temperature", temperature if temperature >= COLDEST else 0.0)
        fix("top_p", _real("top_p", self.top_p, 0.0, 1.0))
        if self.top_p == 0.0:
            raise RequestError("top_p must be above 0; for the most likely token alone set temperature to 0")
        fix("top_k", min(_integer("top_k", self.top_k, -1), MOST_KEPT))
        fix("min_p", _real("min_p", self.min_p, 0.0, 1.0))
        if self.seed is not None:
            fix("seed", _integer("seed", self.seed, -(1 << 63), (1 << 64) - 1))
        for name in ("presence_penalty", "frequency_penalty"):
            fix(name, _real(name, getattr(self, name), -2.0, 2.0))
        fix("repetition_penalty", _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0))
        if self.max_tokens is not None:
            fix("max_tokens", _integer("max_tokens", self.max_tokens, 1))
        fix("min_tokens", _integer("min_tokens", self.min_tokens, 0))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                fix(name, _integer(name, getattr(self, name), 0, MOST_LOGPROBS))
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "return_rejected"):
            _boolean(name, getattr(self, name))
        fix("stop", _strings("stop", self.stop))
        fix("bad_words", _strings("bad_words", self.bad_words))
        if not all(word.strip() for word in self.bad_words):
            raise RequestError("bad_words must have more than white space in each")
        fix("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            fix("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids allows no token; leave it out to allow all")
        fix("logits_processors", _tuple("logits_processors", self.logits_processors))
        if not all(callable(function) for function in self.logits_processors):
            raise RequestError("logits_processors must be functions of token ids and logits")
        if self.logit_bias is not None:
            fix("logit_bias", _bias(self.logit_bias))
        if self.structured_outputs is not None:
            fix("structured_outputs", StructuredOutputsParams.parse(self.structured_outputs))
            if self.ignore_eos:
                raise RequestError("structured_outputs ends an answer with end-of-sequence; leave ignore_eos out")
        if self.prediction is not None:
            fix("prediction", _prediction(self.prediction))
        if self.speculative is not None:
            fix("speculative", SpeculationOverride.parse(self.speculative))
        self._check_pairs()

    def _check_pairs(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; lower it")
        if self.best_of is not None and self.temperature == 0 and self.best_of > self.n:
            raise RequestError("best_of above n needs a temperature above 0, since greedy completions are all alike")

    @property
    def filters(self) -> bool:
        """Whether any parameter removes tokens from the distribution."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @property
    def draw(self) -> DrawParams:
        """What of it travels in plans."""
        return DrawParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            scored=self.scored,
            prompt_logprobs=self.prompt_logprobs,
        )

    @property
    def penalises(self) -> bool:
        """Whether any parameter looks at how often tokens occurred."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def candidates(self) -> int:
        """How many completions are sampled, of which `n` are given."""
        return self.best_of or self.n

    @property
    def scored(self) -> int | None:
        """How many log-probabilities to compute beside each emitted token's own; None to compute none at all."""
        return 0 if self.logprobs is None and self.candidates > self.n else self.logprobs

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> "SamplingParams":
        """Return parameters from a mapping of names to values.

        Raises:
            ConfigError: an unknown key; the message suggests the nearest known one.
            RequestError: a value is out of range.
        """
        _check_names(cls, value)
        return cls(**value)


def _integer(name: str, value: object, low: int, high: int | None = None) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RequestError(f"{name} must be an integer, not {shown(value)}")
    number = int(value)
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} must be {bounds}, not {shown(number)}")
    return number


def _real(name: str, value: object, low: float, high: float) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise RequestError(f"{name} must be a number, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not low <= number <= high:
        raise RequestError(f"{name} must be between {low:g} and {high:g}, not {shown(number)}")
    return number


def _boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, not {shown(value)}")


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must be a mapping of token ids to numbers, not {shown(value)}")
    biases = {}
    for key, bias in value.items():
        named = isinstance(key, str) and key.isdecimal() and len(key) < 20  # JSON has only strings as keys
        token = _integer("a token id in logit_bias", int(key) if named else key, 0)
        biases[token] = _real(f"logit_bias of token {token}", bias, -MOST_BIAS, MOST_BIAS)
    return biases


def _strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else _tuple(name, value)
    if not all(isinstance(s, str) and s for s in strings):
        raise RequestError(f"{name} must be strings of at least one character")
    try:
        "".join(strings).encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} must be valid Unicode text; decode it with the right encoding") from None
    return strings


def _ids(name: str, value: Any) -> tuple[int, ...]:
    ids = _tuple(name, value)
    if set(map(type, ids)) == {int} and min(ids) >= 0:  # the usual case, quickly: there may be very many
        return ids
    return tuple(_integer(name, token, 0) for token in ids)


def _prediction(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, bytes):
        raise RequestError("prediction is text or token ids, not bytes; decode it first")
    if not isinstance(value, str):
        return _ids("prediction", value)
    if value:
        _strings("prediction", value)
    return value


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise RequestError(f"{name} must be a list, not {shown(value)}")
    return tuple(value)
