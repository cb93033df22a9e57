"""One tree of several proposers' drafts for a request.

Where they agree, they share a node; where they do not, both nodes stay, and the target's token decides. The nodes of
a proposer with weights stay at the front, since its cache layers hold them in that order; the most promising draft of
the others comes next. A node belongs to the proposer that gives it the highest probability.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parlay.drafting.belief import survivals
from parlay.drafting.state import Candidate
from parlay.types.draft import ROOT, Draft


def union(candidates: Sequence[Candidate], most: int, calibrate: Callable[[Draft], Draft]) -> Candidate:
    """Return the draft that holds the most promising nodes of all candidates, of which there is at least one.

    Args:
        candidates: drafts of one request, with calibrated probabilities.
        most: most nodes of the draft.
        calibrate: function that adds calibrated probabilities to a draft with the proposers' log-odds.
    """
    if len(candidates) == 1:
        return candidates[0]
    ordered = sorted(candidates, key=lambda one: (-one.speculated, -sum(one.chances)))
    best = ordered[0]
    if all(_within(one.draft, best.draft) for one in ordered[1:]):
        return best
    tokens: list[int] = []
    parents: list[int] = []
    owners: list[_Owner] = []
    places: dict[tuple[int, int], int] = {}
    for one in ordered:
        own = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(one.draft.tokens, one.draft.parents, strict=True)):
            owner = _owner(one, node)
            place = own[node] = places.setdefault((own[parent], token), len(tokens))
            if place == len(tokens):
                tokens.append(token)
                parents.append(own[parent])
                owners.append(owner)
            elif owner.prob > owners[place].prob:
                owners[place] = owner
    sources, odds = tuple(owner.source for owner in owners), tuple(owner.odds for owner in owners)
    draft = calibrate(Draft(tuple(tokens), tuple(parents), sources, None, None, odds))
    chances: list[float] = []
    for parent, chance in zip(parents, survivals(draft), strict=True):
        chances.append(min(chance, 1.0 if parent == ROOT else chances[parent]))
    nodes: Sequence[int] = range(len(tokens))
    if len(nodes) > most:  # a parent is never less likely than its child, and comes before it
        nodes = sorted(sorted(nodes, key=lambda node: -chances[node])[:most])
    intact = sum(node == place for place, node in enumerate(nodes[: best.speculated]))
    return Candidate(
        draft.select(nodes),
        [chances[node] for node in nodes],
        speculated=intact,
        hosted=frozenset(place for place, node in enumerate(nodes) if owners[node].hosted),
        joined=True,
    )


def best_of(candidates: Sequence[Candidate], price: float) -> Candidate:
    """Return the draft that promises most tokens beyond the cost of its rows, `price` tokens each."""
    return max(candidates, key=lambda one: (sum(max(c - price, 0.0) for c in one.chances), sum(one.chances)))


class _Owner(NamedTuple):
    """The proposer that is surest of a node: `Belief`'s estimate, its own log-odds, whether it is on the host."""

    prob: float
    source: str
    odds: float
    hosted: bool


def _owner(one: Candidate, node: int) -> _Owner:
    draft = one.draft
    assert draft.probs is not None
    assert draft.odds is not None
    return _Owner(draft.probs[node], draft.source[node], draft.odds[node], node in one.hosted)


def _within(draft: Draft, other: Draft) -> bool:
    """Whether a chain is the beginning of another."""
    n = len(draft)
    return draft.is_chain and other.is_chain and n <= len(other) and draft.tokens == other.tokens[:n]
