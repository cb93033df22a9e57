"""How many guesses are worth verifying: those that raise the expected tokens per second.

All candidate nodes of a step's requests lie in one pool. A node's survival is the probability that it is accepted:
the product of the calibrated probabilities on its path. Each node adds its survival to the expected tokens and a row
to the step's time, so the best set of any size holds the nodes of the highest survival, and every request's part of
it is a tree, since survival only falls along a path. What is left is to find the best size; none may be the best.

Source: TurboSpec (arXiv 2406.14066) for the aim; pooling by survival is vLLM's adaptive verification.
"""

from collections.abc import Sequence

from parlay.types.draft import Draft


def survivals(draft: Draft) -> list[float]:
    """Return how likely each node is to be accepted, from calibrated probabilities."""
    found: list[float] = []
    for parent, prob in zip(draft.parents, draft.probs or (), strict=True):
        found.append(prob if parent < 0 else found[parent] * prob)
    return found


def choose(
    chances: Sequence[Sequence[float]],
    requests: int,
    rows: int,
    table: Sequence[float],
    more: float = 0.0,
    margin: float = 1.0,
) -> list[list[int]]:
    """Return the nodes of every draft that together give the most expected tokens per second, ascending.

    Args:
        chances: of each draft its nodes' survivals, which never rise from a parent to its child.
        requests: that emit a token in this step, drafts or not.
        rows: that the step runs without drafts.
        table: seconds of a step by rows, never falling.
        more: seconds of the step beside the table.
        margin: factor in goodput below which no draft is worth while.
    """
    chosen: list[list[int]] = [[] for _ in chances]
    if not requests or rows >= len(table):
        return chosen
    pool = sorted(
        ((chance, draft, node) for draft, own in enumerate(chances) for node, chance in enumerate(own)),
        key=lambda candidate: -candidate[0],  # of equals the parent stays before its child
    )[: len(table) - 1 - rows]
    tokens, best = float(requests), 0
    rate = margin * tokens / (table[rows] + more)
    for count, (chance, _, _) in enumerate(pool, start=1):
        tokens += chance
        now = tokens / (table[rows + count] + more)
        if now > rate:
            best, rate = count, now
    for _, draft, node in pool[:best]:
        chosen[draft].append(node)
    return [sorted(nodes) for nodes in chosen]


def best_length(
    chances: Sequence[float],
    requests: int,
    rows: int,
    table: Sequence[float],
    drafting: Sequence[float],
    more: float = 0.0,
    margin: float = 1.0,
) -> int:
    """Return how many tokens each request should draft, all alike, where drafting itself takes time.

    Args:
        chances: of a node at depth 1, 2, ... to be accepted given that its parent is.
        requests: that emit.
        rows: as for `choose`.
        table: likewise.
        drafting: seconds of drafting 0, 1, 2, ... tokens.
        more: as for `choose`.
        margin: likewise.
    """
    last = len(table) - 1
    best, rate = 0, margin * requests / (table[min(rows, last)] + more)
    survival, tokens = 1.0, float(requests)
    for length, chance in enumerate(chances[: len(drafting) - 1], start=1):
        survival *= chance
        tokens += requests * survival
        if rows + length * requests > last:
            break
        now = tokens / (table[rows + length * requests] + more + max(drafting[length] - drafting[0], 0.0))
        if now > rate:
            best, rate = length, now
    return best
