"""Suffix decoding: guess what most often followed here before, in this request and in earlier responses.

Idea (Oliaro et al. 2411.04975, "SuffixDecoding"; vLLM's `suffix`): count every string of up to 24 tokens, of a
request's prompt and output in a tree of its own, of responses in a tree that the requests of a tenant share. Every
match of the last tokens is followed along its most frequent continuation while that is likely; the chain of which
most tokens are expected to be right is drafted. So each request and step has a length of its own: many tokens in a
loop, none in new text.

Wins on agents' loops, edits and everything that was answered before. Costs about 10 us a request and step with
10,000 responses at hand; the oldest responses go when there are more, or when they take more memory than allowed.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlay.errors import ConfigError
from parlay.proposers.base import HostProposer, TargetInfo
from parlay.proposers.suffix_tree import Counts, Guess, make_tree
from parlay.types.draft import NO_DRAFT, Draft

EMBEDDED: Mapping[str, Any] = {}
_SLICE = 16  # places whose strings are uncounted at a time, so that no step waits for a whole response to go


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `suffix`, with vLLM's names where it has them.

    Attributes:
        suffix_decoding_max_tree_depth: longest string that is counted, match and guess together.
        suffix_decoding_max_cached_requests: responses that are remembered; 0 for none.
        suffix_decoding_max_cached_bytes: memory that they may take.
        suffix_decoding_max_spec_factor: guesses for each token of a match.
        suffix_decoding_min_token_prob: least estimated probability that a guess is right.
    """

    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_cached_bytes: int = 512 << 20
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1

    def __post_init__(self) -> None:
        for name, least in (
            ("suffix_decoding_max_tree_depth", 2),
            ("suffix_decoding_max_cached_requests", 0),
            ("suffix_decoding_max_cached_bytes", 0),
            ("suffix_decoding_max_spec_factor", 0),
            ("suffix_decoding_min_token_prob", 0),
        ):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.suffix_decoding_max_tree_depth > 1024:
            raise ConfigError("suffix_decoding_max_tree_depth above 1024 costs memory and finds nothing; lower it")
        if self.suffix_decoding_min_token_prob > 1:
            raise ConfigError(
                f"suffix_decoding_min_token_prob is a probability, not {self.suffix_decoding_min_token_prob}"
            )


class Proposer(HostProposer):
    """Drafts the most promising chain of a request's own tree and its tenant's."""

    default_length = 32

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._options = options
        self._depth = options.suffix_decoding_max_tree_depth
        self._texts: dict[int, _Text] = {}
        self._past = _Past(options)

    def admit(self, request_id: int, prompt: Sequence[int], tenant: str) -> None:
        """Count a prompt's strings, for this request alone."""
        own = make_tree(self._depth)
        text = self._texts[request_id] = _Text(own, own.begin(), tenant)
        text.append(prompt, self._depth)
        text.response = self._past.begin(tenant)

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Count the strings that end in new tokens of a response, for its tenant too."""
        text = self._texts[request_id]
        text.append(tokens, self._depth)
        if text.response is not None:
            self._past.append(text.response, tokens)

    def propose(self, request_id: int, budget: int) -> Draft:
        """Return the chain with the highest expected number of right guesses; ties go to the request's own."""
        text, options = self._texts[request_id], self._options
        limits = (
            budget,
            options.suffix_decoding_max_spec_factor,
            0.0,
            options.suffix_decoding_min_token_prob,
        )
        best = Guess(*text.tree.guess(text.number, *limits))
        if (shared := self._past.tree(text.tenant)) is not None:
            other = Guess(*shared.guess_after(text.tail, *limits))
            best = other if other.score > best.score else best
        if not best.tokens:
            return NO_DRAFT
        before = (1.0, *best.probs)
        probs = [p / q for p, q in zip(best.probs, before, strict=False)]
        return Draft.chain(best.tokens, "suffix", probs)

    def forget(self, request_id: int) -> None:
        """Drop a request's own tree; its response stays for its tenant."""
        text = self._texts.pop(request_id, None)
        if text is not None and text.response is not None:
            self._past.end(text.response)


@dataclass(slots=True)
class _Text:
    """One request: its tree, and the last tokens."""

    tree: Counts
    number: int
    tenant: str
    tail: list[int] = field(default_factory=list)
    response: "_Response | None" = None  # what its tenant learns from it

    def append(self, tokens: Sequence[int], depth: int) -> None:
        self.tree.append(self.number, tokens)
        self.tail = [*self.tail, *tokens[-depth:]][-depth:]


@dataclass(slots=True, eq=False)
class _Response:
    """A response in its tenant's tree."""

    tenant: str
    number: int
    evicted: bool = False


class _Past:
    """The responses of all tenants, each tenant's in a tree of its own; the oldest of all go first."""

    def __init__(self, options: Options) -> None:
        self._depth = options.suffix_decoding_max_tree_depth
        self._most = options.suffix_decoding_max_cached_requests
        self._most_bytes = options.suffix_decoding_max_cached_bytes
        self._trees: dict[str, Counts] = {}
        self._held: Counter[str] = Counter()  # responses in each tree
        self._responses: deque[_Response] = deque()
        self._leaving: _Response | None = None
        self.bytes = 0

    def tree(self, tenant: str) -> Counts | None:
        """Return a tenant's tree, if there is one."""
        return self._trees.get(tenant)

    def begin(self, tenant: str) -> _Response | None:
        """Begin a response; None if none are remembered."""
        if not self._most:
            return None
        before = self._trees[tenant].bytes if tenant in self._trees else 0
        tree = self._trees.setdefault(tenant, make_tree(self._depth))
        response = _Response(tenant, tree.begin())
        self.bytes += tree.bytes - before
        self._held[tenant] += 1
        self._responses.append(response)
        return response

    def append(self, response: _Response, tokens: Sequence[int]) -> None:
        """Take note of a response's next tokens, and make room."""
        if not response.evicted:
            tree = self._trees[response.tenant]
            before = tree.bytes
            tree.append(response.number, tokens)
            self.bytes += tree.bytes - before
        self._make_room()

    def end(self, response: _Response) -> None:
        """Take note that a response is complete."""
        if not response.evicted:
            self._trees[response.tenant].end(response.number)

    def _make_room(self) -> None:
        """Uncount a part of the oldest response while there are too many, or too large ones."""
        if self._leaving is None:
            if len(self._responses) <= self._most and self.bytes <= self._most_bytes:
                return
            self._leaving = self._responses.popleft()
            self._leaving.evicted = True
        leaving, tree = self._leaving, self._trees[self._leaving.tenant]
        before = tree.bytes
        if tree.remove(leaving.number, _SLICE):
            self._leaving = None
            self._held[leaving.tenant] -= 1
        self.bytes += tree.bytes - before
        if not self._held[leaving.tenant]:
            self.bytes -= tree.bytes
            del self._trees[leaving.tenant], self._held[leaving.tenant]
