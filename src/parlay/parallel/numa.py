"""Which processors each rank, or replica, of a machine runs on: those beside the memory that its weights lie in."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from parlay.system import parse_list

_NODES = Path("/sys/devices/system/node")


def memory_nodes(folder: Path = _NODES) -> list[frozenset[int]]:
    """Return the processors of each memory node that has any; none where the system does not say."""
    found = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        try:
            processors = parse_list((node / "cpulist").read_text())
        except (OSError, ValueError):
            return []
        if processors:
            found.append(processors)
    return found


def place_ranks(size: int, allowed: frozenset[int], nodes: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return the processors of each rank; of all ranks the same ones where nothing is gained by dividing them.

    Ranks fill the nodes one after another, as equally as they can. Ranks of one node have different processors if
    there are enough.

    Args:
        size: number of ranks.
        allowed: processors that this process may use.
        nodes: processors of each memory node, see `memory_nodes`.
    """
    usable = [own for node in nodes if (own := node & allowed)]
    if len(usable) < 2 or size < 2:
        return [allowed] * size
    places: list[frozenset[int]] = []
    for index, node in enumerate(usable):
        ranks = [rank for rank in range(size) if rank * len(usable) // size == index]
        order = sorted(node)
        for i in range(len(ranks)):
            share = order[len(order) * i // len(ranks) : len(order) * (i + 1) // len(ranks)]
            places.append(frozenset(share) or node)
    return places


def place_replicas(size: int, allowed: frozenset[int], nodes: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return the processors of each replica, which its own ranks divide; none where nothing is gained by choosing.

    A replica has whole nodes, or a part of one where there are more replicas than nodes.

    Args:
        size: number of replicas.
        allowed: processors that this process may use.
        nodes: processors of each memory node, see `memory_nodes`.
    """
    usable = [own for node in nodes if (own := node & allowed)]
    if len(usable) < 2 or size < 2:
        return [frozenset()] * size
    if size > len(usable):
        return place_ranks(size, allowed, nodes)
    bounds = [len(usable) * i // size for i in range(size + 1)]
    return [frozenset().union(*usable[begin:end]) for begin, end in pairwise(bounds)]
