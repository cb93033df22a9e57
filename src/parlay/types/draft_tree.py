"""Geometry of drafts: depths, ancestors, children."""

from collections.abc import Sequence

from parlay.types.draft import ROOT, Draft


def depths(draft: Draft) -> list[int]:
    """Return each node's depth; children of the root have depth 1."""
    result: list[int] = []
    for parent in draft.parents:
        result.append(1 if parent == ROOT else result[parent] + 1)
    return result


def paths(draft: Draft) -> list[list[int]]:
    """Return for each node the nodes from the root's child down to the node itself."""
    result: list[list[int]] = []
    for node, parent in enumerate(draft.parents):
        result.append([node] if parent == ROOT else [*result[parent], node])
    return result


def children(draft: Draft) -> list[dict[int, int]]:
    """Return a map from token to child for every node, the root's last (index `ROOT`).

    Among children with the same token the first counts; the others can never be accepted.
    """
    result: list[dict[int, int]] = [{} for _ in range(len(draft) + 1)]
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        result[parent].setdefault(token, node)
    return result


def walk(draft: Draft, tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes of a draft along which tokens go, root to leaf."""
    if draft.is_chain:
        right = 0
        for drafted, token in zip(draft.tokens, tokens, strict=False):
            if drafted != token:
                break
            right += 1
        return tuple(range(right))
    below, path = children(draft), [ROOT]
    for token in tokens:
        node = below[path[-1]].get(token)
        if node is None:
            break
        path.append(node)
    return tuple(path[1:])


def without_orphans(draft: Draft, nodes: Sequence[int]) -> Sequence[int]:
    """Return which of some nodes may be verified: of drawn siblings none without those before it, nor what follows.

    They were drawn one after another without replacement, and are judged in this order.
    """
    if draft.q is None or draft.is_chain:
        return nodes
    kept: set[int] = set()
    skipped: set[int] = set()  # parents of which a child was left out
    for node, parent in enumerate(draft.parents):
        if node in nodes and parent not in skipped and (parent == ROOT or parent in kept):
            kept.add(node)
        else:
            skipped.add(parent)
    return sorted(kept)


def height(draft: Draft) -> int:
    """Return how many nodes the longest path has."""
    return len(draft) if draft.is_chain else max(depths(draft))


def levels(draft: Draft, path: Sequence[int], emitted: int) -> list[bool]:
    """Return whether a draft was accepted at depths 1, 2, ..., as far as the target judged it."""
    right = [True] * len(path)
    deeper = (ROOT, *path)[-1] in draft.parents
    return [*right, False] if deeper and emitted > len(path) else right
