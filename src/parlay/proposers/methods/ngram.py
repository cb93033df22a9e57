"""N-gram prompt lookup: the text often repeats itself, so draft what followed last time.

Idea (Saxena 2023, "Prompt Lookup Decoding"; vLLM's `ngram`): of the last n tokens, for the largest n in
[prompt_lookup_min, prompt_lookup_max] that occurs earlier in the same request, draft the tokens that followed there.
A tree also has what followed shorter n-grams, where that differs.

Wins on edits, summaries, agents' loops and code that repeats names. Loses nothing where nothing repeats: without a
match there is no draft. Each request has its own tree, the one of `suffix` and as deep as the longest n-gram: about
2 us per request and step; 60 to 80 bytes per token at depth 4, and never more than 60 for each token and n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parlay.errors import ConfigError
from parlay.proposers.base import HostProposer, TargetInfo
from parlay.proposers.suffix_tree import SuffixTree, make_tree
from parlay.types.draft import NO_DRAFT, ROOT, Draft

SOURCE = "ngram"
_OTHERS = 2  # continuations beside the first one
_SHARE = 4  # each of them has 1 / _SHARE of the budget


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `ngram`, with vLLM's names. If only one bound is given, the other equals it.

    Attributes:
        prompt_lookup_min: shortest n-gram worth following (default 1).
        prompt_lookup_max: longest n-gram looked up (default 4).
        match: the earlier occurrence to follow.
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
        if high > 1024:
            raise ConfigError(
                f"n-grams of more than 1024 tokens cost memory and find nothing more: "
                f"lower prompt_lookup_max ({high}) to 1024 or less"
            )

    @property
    def bounds(self) -> tuple[int, int]:
        """The shortest and longest n-gram, defaults filled in."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None and high is None:
            return 1, 4
        return (high if low is None else low), (low if high is None else high)  # type: ignore[return-value]


class Proposer(HostProposer):
    """Drafts what followed the longest matching n-gram."""

    joins_auto = True

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._low, self._high = options.bounds
        self._latest = options.match == "latest"
        self._texts: dict[int, tuple[SuffixTree, int]] = {}  # each request's tree, and the text's number in it

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Index a request's next tokens."""
        if request_id not in self._texts:
            tree = make_tree(self._high, latest=self._latest)
            self._texts[request_id] = tree, tree.begin()
        tree, number = self._texts[request_id]
        tree.append(number, tokens)

    def propose(self, request_id: int, budget: int) -> Draft:
        """Return the continuation of the match, cut to the budget and to the end of the text."""
        tree, number = self._texts[request_id]
        tokens = tree.lookup(number, self._low, budget, self._high)
        return Draft.chain(tokens, SOURCE) if tokens else NO_DRAFT

    def branch(self, request_id: int, budget: int) -> Draft:
        """Return that continuation first, and what followed shorter n-grams where it differs."""
        tree, number = self._texts[request_id]
        found: list[list[int]] = []
        for length in range(self._high, self._low - 1, -1):
            tokens = tree.lookup(number, self._low, budget, length)
            if tokens and tokens not in found:
                found.append(tokens)
        others = found[1 : 1 + _OTHERS]
        if not found or not (share := budget // _SHARE) or not others:
            return Draft.chain(found[0], SOURCE) if found else NO_DRAFT
        places: dict[tuple[int, int], int] = {}
        for path, most in ((found[0], budget - share * len(others)), *((other, share) for other in others)):
            at = ROOT
            for token in path[:most]:
                at = places.setdefault((at, token), len(places))
        parents, tokens_of = zip(*places, strict=True)
        return Draft(tokens_of, parents, (SOURCE,) * len(places))

    def forget(self, request_id: int) -> None:
        """Drop a request's tree."""
        self._texts.pop(request_id, None)

    def reset(self) -> None:
        """Drop all trees."""
        self._texts.clear()
