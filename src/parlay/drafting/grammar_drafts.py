"""Drafts under a grammar: forbidden nodes cost no row, forced tokens need no proposer."""

from collections.abc import Sequence

from parlay.sampling.grammar import Constraint
from parlay.types.draft import ROOT, Draft

SOURCE = "grammar"


def constrain_draft(draft: Draft, constraint: Constraint, known: Sequence[int], room: int) -> tuple[Draft, int]:
    """Return a draft without forbidden nodes, whose best path continues with the tokens that must follow it.

    Forced tokens are verified like any others.

    Args:
        draft: the proposer's draft.
        constraint: the request's grammar.
        known: the request's output before the draft.
        room: most nodes to return.

    Returns:
        The new draft, and how many of its first nodes are the old one's, unchanged.
    """
    if draft.q is not None:
        return _lengthened(draft.cut(room), constraint, known, room)
    paths: list[list[int]] = []  # tokens from the root to each kept node
    parents: list[int] = []
    sources: list[str] = []
    probs: list[float] = []
    place: dict[int, int] = {ROOT: ROOT}  # new index of each old node that is kept
    intact = 0
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if len(paths) == room or parent not in place:
            continue
        path = [] if parent == ROOT else paths[place[parent]]
        if not constraint.permits([*known, *path], token):
            continue
        place[node] = len(paths)
        intact += node == len(paths) == intact
        paths.append([*path, token])
        parents.append(place[parent])
        sources.append(draft.source[node])
        probs.append(1.0 if draft.probs is None else draft.probs[node])
    last = ROOT
    for node, parent in enumerate(parents):
        if parent == last:
            last = node
    path = [] if last == ROOT else paths[last]
    for token in constraint.forced([*known, *path])[: max(0, room - len(paths))]:
        path = [*path, token]
        paths.append(path)
        parents.append(last)
        last = len(paths) - 1
        sources.append(SOURCE)
        probs.append(1.0)
    tokens = tuple(path[-1] for path in paths)
    return Draft(tokens, tuple(parents), tuple(sources), None if draft.probs is None else tuple(probs)), intact


def _lengthened(draft: Draft, constraint: Constraint, known: Sequence[int], room: int) -> tuple[Draft, int]:
    """Return a draft of sampled tokens with all its nodes, and forced tokens after it if it may have them.

    The distribution that it was sampled from was masked already. A node that is forbidden all the same is left to
    verification: leaving it out because of its token would bias what is sampled in its place.
    """
    n = len(draft)
    if not draft.is_chain or not all(
        constraint.permits([*known, *draft.tokens[:i]], token) for i, token in enumerate(draft.tokens)
    ):
        return draft, n
    forced = constraint.forced([*known, *draft.tokens])[: max(0, room - n)]
    assert draft.q is not None
    more = len(forced)
    return (
        Draft(
            (*draft.tokens, *forced),
            (*draft.parents, *range(n - 1, n + more - 1)),
            (*draft.source, *(SOURCE,) * more),
            None if draft.probs is None else (*draft.probs, *(1.0,) * more),
            (*draft.q, *(None,) * more),
        ),
        n,
    )
