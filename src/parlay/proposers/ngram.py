"""N-gram prompt lookup: the text often repeats itself, so guess what followed last time.

Idea (Saxena 2023, "Prompt Lookup Decoding"; vLLM's `ngram`): of the last n tokens, for the largest n in
[prompt_lookup_min, prompt_lookup_max] that occurs earlier in the same request, draft the tokens that followed there.

Wins on edits, summaries, agents' loops and code that repeats names. Loses nothing where nothing repeats: without a
match there is no draft. Costs one dictionary look-up per n and token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parlay.errors import ConfigError
from parlay.proposers.base import HostProposer, TargetInfo
from parlay.types.draft import NO_DRAFT, Draft

EMBEDDED: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `ngram`, with vLLM's names. If only one bound is given, the other equals it.

    Attributes:
        prompt_lookup_min: shortest n-gram worth following (default 1).
        prompt_lookup_max: longest n-gram looked up (default 4).
        match: which earlier occurrence to follow.
    """

    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    match: Literal["earliest", "latest"] = "latest"

    def __post_init__(self) -> None:
        low, high = self.bounds
        if low < 1:
            raise ConfigError(f"prompt_lookup_min must be at least 1, not {low}")
        if high < low:
            raise ConfigError(f"prompt_lookup_max ({high}) must not be below prompt_lookup_min ({low})")

    @property
    def bounds(self) -> tuple[int, int]:
        """The shortest and longest n-gram, defaults filled in."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None and high is None:
            return 1, 4
        return (high if low is None else low), (low if high is None else high)  # type: ignore[return-value]


class _Text:
    """One request's known tokens with an index of where each n-gram ended."""

    def __init__(self, low: int, high: int, latest: bool) -> None:
        self._sizes = range(low, high + 1)
        self._latest = latest
        self._ends: dict[tuple[int, ...], int] = {}
        self._tokens: list[int] = []
        self._match: int | None = None  # where the longest n-gram that now ends the text ended before

    def append(self, token: int) -> None:
        tokens = self._tokens
        tokens.append(token)
        end = len(tokens)
        self._match = None
        for n in self._sizes:
            if n > end:
                break
            gram = tuple(tokens[end - n :])
            before = self._ends.get(gram)
            if before is not None:
                self._match = before
            if before is None or self._latest:
                self._ends[gram] = end

    def following(self, count: int) -> list[int]:
        return [] if self._match is None else self._tokens[self._match : self._match + count]


class Proposer(HostProposer):
    """Drafts a chain of what followed the longest matching n-gram."""

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._low, self._high = options.bounds
        self._latest = options.match == "latest"
        self._texts: dict[int, _Text] = {}

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Index a request's next tokens."""
        text = self._texts.get(request_id)
        if text is None:
            text = self._texts[request_id] = _Text(self._low, self._high, self._latest)
        for token in tokens:
            text.append(token)

    def propose(self, request_id: int, budget: int) -> Draft:
        """Return the continuation of the match, cut to the budget and to the end of the text."""
        tokens = self._texts[request_id].following(budget)
        return Draft.chain(tokens, "ngram") if tokens else NO_DRAFT

    def forget(self, request_id: int) -> None:
        """Drop a request's index."""
        self._texts.pop(request_id, None)
