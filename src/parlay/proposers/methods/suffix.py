"""Suffix decoding: draft what most often followed here before, in this request and in earlier responses.

Idea (Oliaro et al. 2411.04975, "SuffixDecoding"; vLLM's `suffix`): count every string of up to 24 tokens, of a
request's prompt and output in its own tree, of responses in a tree that the requests of a tenant share. Every match
of the last tokens is followed along its most frequent continuation while that is likely; the chain with the most
expected accepted tokens is drafted, or the tree of all likely continuations of its match. So the draft length adapts
to each request and step: many tokens in a loop, none in new text.

Wins on agents' loops, edits and everything that was answered before. Costs about 10 us per request and step with
10,000 responses in memory; the oldest are dropped when there are more, or when they take more memory than allowed.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from parlay.errors import ConfigError
from parlay.proposers.base import HostProposer, TargetInfo
from parlay.proposers.suffix_tree import Branches, Continuation, SuffixTree, make_tree
from parlay.types.draft import NO_DRAFT, Draft

SOURCE = "suffix"
_SLICE = 16  # places whose strings are uncounted for each step of a response, or twice its new tokens if that is more
_LEAST = 2  # tokens of a response; a single one teaches nothing
_OBJECTS = 120  # bytes of a remembered response beside the tree: a `_Response`, its number, its place in the queue


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `suffix`, with vLLM's names where it has them.

    Attributes:
        suffix_decoding_max_tree_depth: longest string that is counted, match and continuation together.
        suffix_decoding_max_cached_requests: responses that are remembered; 0 for none.
        suffix_decoding_max_cached_bytes: memory that they may take.
        suffix_decoding_max_spec_factor: nodes for each token of a match.
        suffix_decoding_min_token_prob: least estimated probability that all nodes up to one are accepted.
    """

    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_cached_bytes: int = 64 << 20
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
    """Drafts what promises most in a request's own tree and its tenant's."""

    joins_auto = True
    default_length = 32
    learns = True

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._options = options
        self._depth = options.suffix_decoding_max_tree_depth
        # Tokens for each one of a match and beside it, and the least probability.
        self._limits = options.suffix_decoding_max_spec_factor, 0.0, options.suffix_decoding_min_token_prob
        self._texts: dict[int, _Text] = {}
        self._past = _Past(options)

    def admit(self, request_id: int, prompt: Sequence[int], tenant: str | None) -> None:
        """Count a prompt's strings, for this request alone."""
        self._texts[request_id] = _Text(_Response(tenant), list(prompt))

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Count the strings that end in new tokens of a response, for its tenant too."""
        text = self._texts[request_id]
        text.unseen += tokens
        self._past.append(text.response, tokens)

    def propose(self, request_id: int, budget: int) -> Draft:
        """Return the chain with the most expected accepted nodes; on ties the one from the request's own tree."""
        tree, number, shared, tail = self._counted(request_id)
        best = Continuation(*tree.guess(number, budget, *self._limits))
        if shared is not None:
            other = Continuation(*shared.guess_after(tail, budget, *self._limits))
            best = other if other.score > best.score else best
        return _draft(best.tokens, range(-1, len(best.tokens) - 1), best.probs)

    def branch(self, request_id: int, budget: int) -> Draft:
        """Return a tree of the likeliest strings that follow where that chain begins."""
        tree, number, shared, tail = self._counted(request_id)
        best = Branches(*tree.branch(number, budget, *self._limits))
        if shared is not None:
            other = Branches(*shared.branch_after(tail, budget, *self._limits))
            best = other if other.score > best.score else best
        return _draft(best.tokens, best.parents, best.probs)

    def _counted(self, request_id: int) -> tuple[SuffixTree, int, SuffixTree | None, list[int]]:
        """Return a request's own tree and number, its tenant's tree, and the last tokens."""
        text = self._texts[request_id]
        tree, number = text.counted(self._depth)
        shared = None if text.response.tenant is None else self._past.tree(text.response.tenant)
        return tree, number, shared, text.tail

    def forget(self, request_id: int) -> None:
        """Drop a request's own tree; its response stays for its tenant."""
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._past.end(text.response)

    def reset(self) -> None:
        """Drop all trees and responses."""
        self._texts, self._past = {}, _Past(self._options)


def _draft(tokens: Sequence[int], parents: Sequence[int], reached: Sequence[float]) -> Draft:
    """Return the draft of nodes that are `reached` with such probabilities."""
    if not tokens:
        return NO_DRAFT
    probs = tuple(p / reached[above] if above >= 0 else p for p, above in zip(reached, parents, strict=True))
    return Draft(tuple(tokens), tuple(parents), (SOURCE,) * len(tokens), probs)


@dataclass(slots=True, eq=False)
class _Response:
    """What a tenant learns from a request; nothing is learnt without a tenant."""

    tenant: str | None
    number: int | None = None  # number in the tenant's tree, once it has begun there
    begun: tuple[int, ...] = ()  # its tokens until then
    places: int = 0  # places that are counted
    evicted: bool = False


@dataclass(slots=True)
class _Text:
    """One request: its own tree, the tokens that are not yet counted there, and the last counted ones."""

    response: _Response
    unseen: list[int]
    own: tuple[SuffixTree, int] | None = None
    tail: list[int] = field(default_factory=list)

    def counted(self, depth: int) -> tuple[SuffixTree, int]:
        """Return the tree and the text's number in it, with all tokens counted, which is put off until it drafts."""
        if self.own is None:
            tree = make_tree(depth)
            self.own = tree, tree.begin()
        tree, number = self.own
        if self.unseen:
            tree.append(number, self.unseen)
            self.tail = [*self.tail, *self.unseen[-depth:]][-depth:]
            self.unseen = []
        return self.own


class _Past:
    """The responses of all tenants, each tenant's in its own tree; the oldest of all are dropped first."""

    def __init__(self, options: Options) -> None:
        self._depth = options.suffix_decoding_max_tree_depth
        self._most = options.suffix_decoding_max_cached_requests
        self._most_bytes = options.suffix_decoding_max_cached_bytes
        self._trees: dict[str, SuffixTree] = {}
        self._held: Counter[str] = Counter()  # responses in each tree
        self._responses: deque[_Response] = deque()
        self._leaving: _Response | None = None
        self.bytes = 0

    def tree(self, tenant: str) -> SuffixTree | None:
        """Return a tenant's tree, if there is one."""
        return self._trees.get(tenant)

    def append(self, response: _Response, tokens: Sequence[int]) -> None:
        """Record a response's next tokens, and make room."""
        if response.evicted or not self._most or response.tenant is None:
            return
        if response.number is None:
            response.begun += tuple(tokens)
            if len(response.begun) < _LEAST:
                return
            tokens, response.begun = response.begun, ()
            response.number = self._begin(response, response.tenant)
        tree = self._trees[response.tenant]
        before = tree.bytes
        tree.append(response.number, tokens)
        response.places += len(tokens)
        self.bytes += tree.bytes - before
        self._make_room(max(_SLICE, 2 * len(tokens)))

    def end(self, response: _Response) -> None:
        """Record that a response is complete."""
        if response.number is not None and response.tenant is not None and not response.evicted:
            self._trees[response.tenant].end(response.number)

    def _begin(self, response: _Response, tenant: str) -> int:
        """Start a response in its tenant's tree; return its number there."""
        before = self._trees[tenant].bytes if tenant in self._trees else 0
        tree = self._trees.setdefault(tenant, make_tree(self._depth))
        number = tree.begin()
        self.bytes += tree.bytes - before + _OBJECTS
        self._held[tenant] += 1
        self._responses.append(response)
        return number

    def _make_room(self, places: int) -> None:
        """Uncount up to so many places of the oldest responses while they are too many, or too large."""
        while places > 0:
            if self._leaving is None:
                if len(self._responses) <= self._most and self.bytes <= self._most_bytes:
                    return
                self._leaving = self._responses.popleft()
                self._leaving.evicted = True
            places -= self._uncount(self._leaving, places)

    def _uncount(self, leaving: _Response, places: int) -> int:
        """Uncount up to so many places of a response; return how many."""
        assert leaving.number is not None
        assert leaving.tenant is not None
        tree, count = self._trees[leaving.tenant], min(places, leaving.places)
        before = tree.bytes
        leaving.places -= count
        if tree.remove(leaving.number, count):
            self._leaving = None
            self._held[leaving.tenant] -= 1
            self.bytes -= _OBJECTS
        self.bytes += tree.bytes - before
        if not self._held[leaving.tenant]:
            self.bytes -= tree.bytes
            del self._trees[leaving.tenant], self._held[leaving.tenant]
        return count
