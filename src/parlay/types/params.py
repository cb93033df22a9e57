"""What a user may ask of one request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Annotated, Any, get_args

from msgspec import Meta

from parlay.errors import ConfigError, RequestError, about, nearest, shown
from parlay.types.bounds import Scalar, check_scalars, from_mapping
from parlay.types.processor import LogitsProcessor
from parlay.types.structured import StructuredOutputsParams

# Logits over a colder temperature overflow float32; over a hotter one they are all alike.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-5, 1e5
# Each completion is a request of its own; each reported log-probability is kept until the end.
MOST_COMPLETIONS, MOST_LOGPROBS = 1024, 1000
MOST_KEPT = (1 << 63) - 1  # a step holds top_k in 64 bits, and no vocabulary is larger

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Completions = Annotated[int, Meta(ge=1, le=MOST_COMPLETIONS)]
Reported = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]
Text = Annotated[str, Meta(min_length=1)]
Id = Annotated[int, Meta(ge=0)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
_BIAS, _ID = (Scalar.of(*get_args(hint)) for hint in (Bias, Id))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOverride:
    """Per-request override of speculation, within the engine's configuration.

    Attributes:
        enabled: False decodes this request plainly.
        num_speculative_tokens: at most this many tokens per draft; None keeps the engine's number.
        method: one of the loaded methods; `none` decodes plainly, None leaves it to the engine.
    """

    enabled: bool = True
    num_speculative_tokens: (
        Annotated[int, Meta(ge=1, extra={"instead": "to decode plainly set enabled to false"})] | None
    ) = None
    method: str | None = None

    def __post_init__(self) -> None:
        check_scalars(self)
        if self.method is not None and not isinstance(self.method, str):
            raise RequestError(f"method must be the name of a loaded speculative method, not {shown(self.method)}")

    @classmethod
    def parse(cls, value: "SpeculationOverride | Mapping[str, Any]") -> "SpeculationOverride":
        """Return `value` as an override.

        Raises:
            RequestError: an unknown key or a value out of range.
        """
        return from_mapping(cls, value, "speculative", "{'enabled': False}")


# vLLM's further parameters: the values that change nothing here, and why others are refused.
_FOREIGN: dict[str, tuple[tuple[Any, ...], str]] = {
    "detokenize": ((True, False), "text is always made"),
    "spaces_between_special_tokens": ((True,), "text is what the tokenizer decodes"),
    "skip_reading_prefix_cache": ((None, False), "prefixes that are cached are always used"),
    "truncate_prompt_tokens": ((None,), "prompts are never cut; shorten the prompt"),
    "flat_logprobs": ((False,), "log-probabilities are objects"),
    "extra_args": ((None, {}), "give a parameter under its own name"),
    "guided_decoding": ((None,), "write structured_outputs"),
    "use_beam_search": ((False,), "there is no beam search; write n or best_of"),
    "length_penalty": ((1.0,), "there is no beam search"),
    "early_stopping": ((False,), "there is no beam search"),
}


def _known(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that mean something here.

    Raises:
        ConfigError: one is unknown, or vLLM's with a value that would mean something.
    """
    known = {f.name for f in fields(cls)}
    found: dict[str, Any] = {}
    for key, value in values.items():
        accepted, why = _FOREIGN.get(key, ((), ""))
        if key in known:
            found[key] = value
        elif not why:
            raise ConfigError(f"unknown sampling parameter {shown(key)}{nearest(key, known)}")
        elif not any(type(value) is type(one) and value == one for one in accepted):
            raise ConfigError(f"{key}={shown(value)} is not supported: {why}")
    return found


def _names_checked(cls: type) -> type:
    """Return a dataclass whose constructor says which name was meant, as `parse` does."""
    construct = cls.__init__  # type: ignore[misc]

    @wraps(construct)
    def checked(self: object, *positional: Any, **values: Any) -> None:
        construct(self, *positional, **_known(cls, values))

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
@dataclass(slots=True, kw_only=True, unsafe_hash=True)
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
        top_p: keep the smallest set of most likely tokens whose probability reaches this; 0 keeps one, and is greedy.
        top_k: keep this many of the most likely tokens; 0 or -1 keeps all.
        min_p: keep tokens at least this likely relative to the most likely one.
        seed: 64-bit seed of the request's noise; None derives one from the engine's seed and arrival order, and so
            does -1, as in vLLM and llama.cpp.
        max_tokens: emit at most this many tokens; None goes on to the context limit.
        min_tokens: forbid end-of-sequence tokens and `stop_token_ids` until the output has this many tokens, and
            find no stop string in them.
        stop: strings that end the text; the text is cut before them.
        include_stop_str_in_output: cut the text behind the stop string, or behind the text of the stop token.
        stop_token_ids: further tokens that end the output, kept in `token_ids`.
        ignore_eos: do not stop at the model's end-of-sequence tokens.
        bad_words: texts whose tokens may not occur in the output one after another: those of the text at the
            beginning of a text, after a space, and after a line's end. Other tokens that spell or contain the same
            text may, as in vLLM and transformers; "\\n" does not forbid a token of two line ends.
            Where nothing but the end of a bad word is left, it is emitted.
        allowed_token_ids: no other tokens are emitted; None allows all.
        logit_bias: added to these token ids' logits, each between -100 and 100.
        logits_processors: functions that are given the output's token ids and the logits of the next token, `[vocab]`
            float32, and return logits; one with three required parameters is given the prompt's token ids first.
            Called once for each emitted token.
        logprobs: report the log-probability of each emitted token and of this many most likely ones; whether before
            or after processing is the engine's `logprobs_mode`.
        prompt_logprobs: the same for each token of the prompt but the first, always before processing; such a prompt
            is computed whole, cached or not.
        skip_special_tokens: leave special tokens out of the text.
        structured_outputs: the form of the answer, such as a JSON schema; it then ends by itself.
        prediction: a text that the output will mostly repeat, such as a file before an edit, or its token ids. It
            becomes draft tokens and changes no token of the output; any engine takes it, also one without a proposer.
        speculative: per-request override of speculation.
        return_rejected: report which draft tokens were rejected, and where.

    Raises:
        ConfigError: an unknown name; the message suggests the nearest known one.
        RequestError: a value is out of range.
    """

    n: Completions = 1
    best_of: Completions | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_p: Probability = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = 0
    min_p: Probability = 0.0
    seed: Annotated[int, Meta(ge=-(1 << 63), extra_json_schema={"maximum": (1 << 64) - 1})] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = 16
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    stop: Text | tuple[Text, ...] | list[Text] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[Id, ...] | list[Id] = ()
    ignore_eos: bool = False
    bad_words: Text | tuple[Text, ...] | list[Text] = ()
    allowed_token_ids: tuple[Id, ...] | Annotated[list[Id], Meta(min_length=1)] | None = None
    logit_bias: Mapping[int, Bias] | None = field(default=None, hash=False)
    logits_processors: tuple[LogitsProcessor, ...] | list[LogitsProcessor] = ()
    logprobs: Reported | None = None
    prompt_logprobs: Reported | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    prediction: str | Sequence[int] | None = None
    speculative: SpeculationOverride | Mapping[str, Any] | None = None
    return_rejected: bool = False

    def __post_init__(self) -> None:
        check_scalars(self)
        made: dict[str, Any] = {
            "temperature": self.temperature if self.temperature >= MIN_TEMPERATURE and self.top_p > 0 else 0.0,
            "top_k": min(self.top_k, MOST_KEPT),
            "seed": None if self.seed == -1 else self.seed,
        }
        for name, read in _READ.items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value is not None or default is not None:
                with about(name):
                    made[name] = read(name, default if value is None else value)
        for name, value in made.items():
            object.__setattr__(self, name, value)
        self._check_pairs()

    def _check_pairs(self) -> None:
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError(f"best_of={self.best_of} is below n={self.n}; raise it", param="best_of")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; lower it", param="min_tokens"
            )
        if self.best_of is not None and self.temperature == 0 and self.best_of > self.n:
            raise RequestError(
                "best_of above n needs a temperature above 0, since greedy completions are all alike", param="best_of"
            )
        if self.structured_outputs is not None and self.ignore_eos:
            raise RequestError(
                "structured_outputs ends an answer with end-of-sequence; leave ignore_eos out", param="ignore_eos"
            )

    def clone(self) -> "SamplingParams":
        """Return a copy. Its values are checked as at first: some may have been assigned since.

        Raises:
            RequestError: a value is out of range.
        """
        return replace(self)

    @property
    def filters(self) -> bool:
        """Whether any parameter removes tokens from the distribution."""
        return self.draw.filters

    @property
    def draw(self) -> DrawParams:
        """What of it travels in plans."""
        return DrawParams(**{f.name: getattr(self, f.name) for f in fields(DrawParams)})

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
        return cls(**_known(cls, value))


def _bias(name: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} must be a mapping of token ids to numbers, not {shown(value)}")
    biases = {}
    for key, bias in value.items():
        named = isinstance(key, str) and key.isdecimal() and len(key) < 20  # JSON has only strings as keys
        token = _ID.check(f"a token id in {name}", int(key) if named else key, param=name)
        biases[token] = _BIAS.check(f"{name} of token {token}", bias, param=name)
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
    return tuple(_ID.check(name, token) for token in ids)


def _some_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = _ids(name, value)
    if not ids:
        raise RequestError(f"{name} allows no token; leave it out to allow all")
    return ids


def _functions(name: str, value: Any) -> tuple[LogitsProcessor, ...]:
    functions = _tuple(name, value)
    if not all(callable(function) for function in functions):
        raise RequestError(f"{name} must be functions of token ids and logits")
    return functions


def _prediction(name: str, value: Any) -> str | tuple[int, ...]:
    if isinstance(value, bytes):
        raise RequestError(f"{name} is text or token ids, not bytes; decode it first")
    if not isinstance(value, str):
        return _ids(name, value)
    if value:
        _strings(name, value)
    return value


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Sequence):
        raise RequestError(f"{name} must be a list, not {shown(value)}")
    return tuple(value)


# How the fields that are neither numbers nor switches are read; None is their default.
_READ: dict[str, Callable[[str, Any], Any]] = {
    "stop": _strings,
    "bad_words": _strings,
    "stop_token_ids": _ids,
    "allowed_token_ids": _some_ids,
    "logits_processors": _functions,
    "logit_bias": _bias,
    "structured_outputs": lambda _, value: StructuredOutputsParams.parse(value),
    "prediction": _prediction,
    "speculative": lambda _, value: SpeculationOverride.parse(value),
}
