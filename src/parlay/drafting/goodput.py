"""How many nodes are worth verifying: those that raise the expected tokens per second.

All candidate nodes of a step's requests lie in one pool. A node's survival is the probability that it is accepted:
the product of the calibrated probabilities on its path. Each node adds its survival to the expected tokens and a row
to the step's time, so the best set of any size holds the nodes with the highest survival. Survival only falls along a
path, so every request's part of that set is a tree. What is left is to find the best size, which may be zero.

Source: TurboSpec (arXiv 2406.14066) for the aim; pooling by survival is vLLM's adaptive verification.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil, exp, log1p

from parlay.drafting.cost import StepTable


def choose(
    chances: Sequence[Sequence[float]],
    requests: int,
    rows: int,
    table: StepTable,
    more: float = 0.0,
    margin: float = 1.0,
    *,
    fair: bool = False,
) -> list[list[int]]:
    """Return the nodes of every draft that together are worth most, ascending.

    That is the most expected tokens per second of all requests together: the arithmetic mean of their speeds. The
    `fair` choice takes the geometric mean instead, in which each request's relative slow-down counts: nodes then go
    to the requests that have fewest, and none is slowed down for the long draft of another.

    Args:
        chances: survivals of each draft's nodes, which never rise from a parent to its child.
        requests: number of requests that emit a token in this step, with drafts or without.
        rows: number of rows that the step runs without drafts.
        table: seconds of a step by rows, never falling.
        more: seconds of the step beside the table.
        margin: factor in goodput below which no draft pays.
        fair: whether to maximise the geometric mean.
    """
    chosen: list[list[int]] = [[] for _ in chances]
    if not requests or rows >= len(table):
        return chosen
    # Among equals the parent stays before its child.
    pool = (
        _by_share(chances)
        if fair
        else sorted(
            ((chance, draft, node) for draft, own in enumerate(chances) for node, chance in enumerate(own)),
            key=lambda candidate: -candidate[0],
        )
    )[: len(table) - 1 - rows]
    plain = table[rows] + more
    gained, best, rate = 0.0, 0, margin
    for count, (gain, _, _) in enumerate(pool, start=1):
        gained += gain
        better = exp(gained / requests) if fair else 1 + gained / requests
        now = better * plain / (table[rows + count] + more)
        if now > rate:
            best, rate = count, now
    for _, draft, node in pool[:best]:
        chosen[draft].append(node)
    return [sorted(nodes) for nodes in chosen]


def _by_share(chances: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """Return all nodes, each with what it adds to the logarithm of its request's tokens, largest first."""
    tokens = [1.0] * len(chances)
    orders = [sorted(range(len(own)), key=lambda node: -own[node]) for own in chances]
    heap = [
        (-log1p(own[order[0]]), draft, 0)
        for draft, (own, order) in enumerate(zip(chances, orders, strict=True))
        if own
    ]
    heapify(heap)
    pool = []
    while heap:
        gain, draft, place = heappop(heap)
        node = orders[draft][place]
        pool.append((-gain, draft, node))
        tokens[draft] += chances[draft][node]
        if place + 1 < len(orders[draft]):
            chance = chances[draft][orders[draft][place + 1]]
            heappush(heap, (-log1p(chance / tokens[draft]), draft, place + 1))
    return pool


def best_draft(
    chances: Sequence[float],
    count: int,
    requests: int,
    table: StepTable,
    drafting: Sequence[float],
    more: float = 0.0,
    margin: float = 1.0,
    nodes: Sequence[float] | None = None,
) -> tuple[int, float]:
    """Return how many tokens to draft for each of some requests, the same for all, where drafting itself takes time.

    The second number is the share of the time that this is expected to save.

    Args:
        chances: probability that a node at depth 1, 2, ... is accepted given that its parent is.
        count: number of requests to draft for.
        requests: number of requests that emit, each of them a row.
        table: seconds of a step by rows, never falling.
        drafting: seconds of drafting 0, 1, 2, ... tokens.
        more: seconds of the step beside the table.
        margin: factor in goodput below which no draft pays.
        nodes: verified nodes of drafts of 0, 1, 2, ... tokens in a row, more where they branch; None for as many.
    """
    last = len(table) - 1
    plain = requests / (table[min(requests, last)] + more)
    best, rate = 0, margin * plain
    survival, tokens = 1.0, float(requests)
    for length, chance in enumerate(chances[: len(drafting) - 1], start=1):
        survival *= chance
        tokens += count * survival
        rows = requests + ceil((nodes[length] if nodes else length) * count)
        if rows > last:
            break
        now = tokens / (table[rows] + more + max(drafting[length] - drafting[0], 0.0))
        if now > rate:
            best, rate = length, now
    return best, max(1 - plain / rate, 0.0) if best else 0.0
