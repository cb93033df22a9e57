"""How the engine speculates."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from parlay.config.strict import build
from parlay.config.verification import COUPLED, TYPICAL, VERIFICATIONS, in_own_words
from parlay.config.vllm_options import renamed
from parlay.errors import ConfigError, shown

PLAIN = "none"
AUTO = "auto"
LENGTHS = ("goodput", "latency", "fixed")
TREES = ("auto", "off")
MOST_WIDTH, MOST_DEPTH = 16, 16  # of a tree
_MOST_NODES = 4096  # of a draft

_JSON_WORDS = ("null", "true", "false")
_EXAMPLE = "{'method': 'ngram'}"
_SHAPE = "{'width': 4, 'depth': 6}"


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How the drafts of a proposer with weights branch, regardless of the gain.

    Attributes:
        width: nodes of each level that a draft continues from, and children of each (EAGLE's `top_k`).
        depth: most levels; None takes the proposer's own default.
    """

    width: int = 4
    depth: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MOST_WIDTH:
            raise ConfigError(f"the width of a tree must be 1 to {MOST_WIDTH}, not {self.width}")
        if self.depth is not None and not 1 <= self.depth <= MOST_DEPTH:
            raise ConfigError(f"the depth of a tree must be 1 to {MOST_DEPTH}, not {self.depth}")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Which proposers draft, how far, and their own options.

    Attributes:
        method: name of a module in `parlay.proposers`; "auto" for every one that needs no weights of its own, and the
            one that the checkpoint `model` is for, if there is one; None for the latter alone.
        num_speculative_tokens: at most this many nodes per draft; None takes each proposer's own default.
        lengths: what lengths are chosen for, from measured cost and acceptance, down to nothing: "goodput", most
            tokens per second of all requests together, or "latency", the shortest time of each one, which "goodput"
            chooses too while none waits for a place. "fixed" chooses nothing and drafts as much as it may.
        tree: whether drafts may have branches: "auto" where they are worth their rows, as far as lengths are chosen;
            "off" for chains alone; or a shape, such as {"width": 4, "depth": 6}, for the proposer with weights, of
            which `num_speculative_tokens` nodes (16 unless said) are verified at most.
        disable_by_batch_size: with more requests than this at once nothing is drafted; None for no such limit.
        num_speculative_tokens_per_batch_size: `(first, last, nodes)`, ascending: with so many requests at once a
            draft has at most so many nodes. Between and beyond these `num_speculative_tokens` counts.
        remember_responses: whether a proposer may draft from responses to earlier requests of the same tenant. None
            means yes, except in a server without API keys, which cannot tell its clients apart.
        max_model_len: sequences that are longer than this are decoded without drafts; None for no such limit.
        verification: what decides which nodes are accepted. "coupled": the token that plain decoding would emit, for
            any draft. "rejection" and "block": the classical samplers, which keep the target's distribution but not a
            seed's tokens; with one proposer with weights, "block" for chains. "typical": Medusa's lossy rule.
        posterior_threshold: for "typical": a node is accepted if its probability is above it; None for 0.09.
        posterior_alpha: for "typical": or above this times e^-entropy, if that is lower; None for 0.3.
        options: keys that the proposers' `Options` declare; checked when the proposers are found.
        several: configs of several proposers, whose drafts become one; method and options are theirs then. With
            "auto" among them, all those that need no weights draft too.
    """

    method: str | None = AUTO
    num_speculative_tokens: int | None = None
    lengths: str = "goodput"
    tree: str | TreeShape = "auto"
    disable_by_batch_size: int | None = None
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    remember_responses: bool | None = None
    max_model_len: int | None = None
    verification: str = COUPLED
    posterior_threshold: float | None = None
    posterior_alpha: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    several: tuple["SpeculativeConfig", ...] = ()

    def __post_init__(self) -> None:
        _check_length(self.num_speculative_tokens)
        if self.lengths not in LENGTHS:
            raise ConfigError(
                f"lengths must be {', '.join(LENGTHS[:-1])} or {LENGTHS[-1]}, not {shown(self.lengths)}"
            )
        parse_tree(self.tree)
        if self.disable_by_batch_size is not None and self.disable_by_batch_size < 0:
            raise ConfigError(f"disable_by_batch_size must be at least 0, not {self.disable_by_batch_size}")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"max_model_len in speculative_config must be at least 1, not {self.max_model_len}")
        _check_ranges(self.num_speculative_tokens_per_batch_size or ())
        self._check_verification()

    def _check_verification(self) -> None:
        if self.verification not in VERIFICATIONS:
            raise ConfigError(
                f"verification must be {', '.join(VERIFICATIONS[:-1])} or {VERIFICATIONS[-1]}, "
                f"not {shown(self.verification)}"
            )
        if self.method == PLAIN and self.verification != COUPLED:
            raise ConfigError(
                f"verification={self.verification!r} needs drafts, and method {PLAIN!r} makes none; leave it out"
            )
        for name in ("posterior_threshold", "posterior_alpha"):
            value = getattr(self, name)
            if value is None:
                continue
            if self.verification != TYPICAL:
                raise ConfigError(f"{name} is for verification={TYPICAL!r}; leave it out, or write that")
            if not 0 < value <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, not {value}")

    def most_nodes(self, batch_size: int) -> int | None:
        """Return how many nodes a draft may have at most with so many requests at once; None for no such limit."""
        if self.disable_by_batch_size is not None and batch_size > self.disable_by_batch_size:
            return 0
        for first, last, nodes in self.num_speculative_tokens_per_batch_size or ():
            if first <= batch_size <= last:
                return nodes
        return None

    @property
    def automatic(self) -> bool:
        """Whether every proposer that needs no weights drafts, alone or beside others."""
        return AUTO in (self.method, *(one.method for one in self.several))

    @classmethod
    def parse(cls, value: "Speculation") -> "SpeculativeConfig":
        """Return a config from a mapping in vLLM's form, a list of them, its JSON, a method's name, or None.

        None is plain decoding.

        Raises:
            ConfigError: not a mapping or list of mappings, no method, a value out of range, or entries of a list that
                contradict each other.
        """
        if isinstance(value, SpeculativeConfig):
            return value
        value = from_json(value)
        if value is None:
            return plain()
        if isinstance(value, Sequence):
            return together([cls._of(one) for one in value])
        return cls._of(value)

    @classmethod
    def _of(cls, value: object) -> "SpeculativeConfig":
        """Return the config of one mapping, or of a name in a list."""
        value = from_json(value)
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"speculative_config must be a mapping such as {_EXAMPLE}, or a list of them, not {shown(value)}"
            )
        given = in_own_words(renamed({key: one for key, one in value.items() if one is not None}))
        method = given.get("method")
        if not isinstance(method, str) and (method is not None or given.get("model") is None):
            raise ConfigError(f"speculative_config needs a 'method', for example {_EXAMPLE}")
        _check_length(given.get("num_speculative_tokens"))
        tree = parse_tree(given.pop("tree", "auto"))
        own = {key: given.pop(key) for key in KEYS & given.keys()}
        made = build(cls, {"method": None, **own, "options": given}, "speculative_config key")
        return replace(made, tree=tree)


# What users may give: a config, a mapping in vLLM's form, a list of them, JSON of either, or None for plain decoding.
Speculation = SpeculativeConfig | Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | None


def from_json(value: Any) -> Any:
    """Return the value of a text, a method's name or JSON; anything else as it is.

    Raises:
        ConfigError: the text is neither.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text:
        raise ConfigError(f"speculative_config is empty; name a method, for example {_EXAMPLE}, or leave it out")
    # A name in brackets was vLLM's for a method without a model.
    name = text[1:-1] if re.fullmatch(r"\[[A-Za-z_]\w*\]", text) else text
    if name not in _JSON_WORDS and re.fullmatch(r"[A-Za-z][\w .-]*", name):
        return {"method": name}
    try:
        found = json.loads(text)
        return from_json(found) if isinstance(found, str) else found
    except (ValueError, RecursionError) as error:
        if not re.match(r"[A-Za-z.~/]", text):
            raise ConfigError(f"speculative_config is not valid JSON: {error}") from None
        raise ConfigError(
            f"speculative_config={shown(text)} is neither a method nor JSON; for a draft model or head write "
            '{"model": ...}'
        ) from None


KEYS = frozenset(SpeculativeConfig.__dataclass_fields__) - {"options", "several"}
_EACH = {"method", "num_speculative_tokens", "options", "several"}  # which each proposer of a list has separately


def together(several: Sequence[SpeculativeConfig]) -> SpeculativeConfig:
    """Return the config of several proposers, whose drafts become one.

    Raises:
        ConfigError: there are none, one of them is plain decoding, or what counts for all differs among them.
    """
    if not several:
        raise ConfigError(f"speculative_config is an empty list; name a proposer in it, for example [{_EXAMPLE}]")
    if len(several) == 1:
        return several[0]
    shared: dict[str, Any] = {}
    for one in several:
        if one.method == PLAIN:
            raise ConfigError(
                f"speculative_config lists method {one.method!r}, which decodes plainly and cannot be combined with "
                "others; remove it from the list, or give it alone"
            )
        for own in fields(SpeculativeConfig):
            value = getattr(one, own.name)
            if own.name in _EACH or value == own.default:
                continue
            if shared.setdefault(own.name, value) != value:
                raise ConfigError(
                    f"{own.name} applies to all methods of the list, but is {shown(shared[own.name])} for one and "
                    f"{shown(value)} for another; give it once"
                )
    return SpeculativeConfig(method=None, **shared, several=tuple(replace(one, **shared) for one in several))


def plain() -> SpeculativeConfig:
    """Return the config of plain decoding."""
    return SpeculativeConfig(PLAIN)


def parse_tree(value: object) -> str | TreeShape:
    """Return a value of `SpeculativeConfig.tree`, from a word, a shape or a mapping that describes one.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(value, Mapping):
        return build(TreeShape, value, "tree key")
    if not isinstance(value, TreeShape) and value not in TREES:
        raise ConfigError(f"tree must be {', '.join(TREES)} or a shape, such as {_SHAPE}, not {shown(value)}")
    return value


def _check_length(k: object) -> None:
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise ConfigError(
            f"num_speculative_tokens must be an integer of at least 1, not {shown(k)}; "
            "to decode plainly write the method 'none'"
        )
    if isinstance(k, int) and k > _MOST_NODES:
        raise ConfigError(f"num_speculative_tokens must be at most {_MOST_NODES}, not {shown(k)}")


def _check_ranges(ranges: Sequence[tuple[int, int, int]]) -> None:
    before = 0
    for first, last, nodes in ranges:
        if not before < first <= last or nodes < 0:
            raise ConfigError(
                "num_speculative_tokens_per_batch_size must hold [first, last, nodes], ascending from batch size 1 "
                f"on and without overlap, such as [[1, 4, 5], [5, 16, 2]], not {shown(list(map(list, ranges)))}"
            )
        before = last


# The default of an engine: every proposer that needs no weights, as far as it pays.
DEFAULT = SpeculativeConfig()
