"""Which of several replicas computes a request: the one with its prefix in the cache, unless that is much busier.

A replica's cache is not queried but remembered: the blocks of the prompts that were sent to it, by the names that its
cache gives them. The unit is a row: a cached token saves one, an unfinished answer takes about `ANSWER` of them.
Being sent elsewhere costs once, and then the prefix is cached there as well; so no prefix is worth more than `BUSIER`
requests. Earlier answers to a tenant help to guess its next ones where they are remembered: having served a tenant
counts as one block.
"""

from collections import OrderedDict
from collections.abc import Sequence

from parlay.kv.prefix import block_hash, root_hash

ANSWER = 128
BUSIER = 4
_DEEPEST = 1 << 10  # most blocks of a prompt that are named: longer common beginnings make no difference


def block_names(tokens: Sequence[int], block_size: int, tenant: str) -> list[bytes]:
    """Return the names that caches give a prompt's full blocks; of a very long one, those of its first blocks.

    A tenant's name comes before them; the empty one stands for no tenant.
    """
    parent = root_hash(tenant)
    names = [parent] if tenant else []
    for index in range(min(len(tokens) // block_size, _DEEPEST)):
        parent = block_hash(parent, tokens[index * block_size : (index + 1) * block_size])
        names.append(parent)
    return names


def choose(cached: Sequence[int], loads: Sequence[int | None], chosen: Sequence[int]) -> int:
    """Return the number of the replica that a request goes to.

    Args:
        cached: tokens of its prompt that each replica is thought to have cached.
        loads: unfinished completions of each; None where no request is taken. At least one takes them.
        chosen: when each was chosen last, by any clock: among equals, the one chosen longest ago.
    """
    taking = {number: load for number, load in enumerate(loads) if load is not None}
    bound = min(taking.values()) + BUSIER

    def value(number: int) -> tuple[int, int, int, int]:
        return cached[number] - ANSWER * taking[number], cached[number], -chosen[number], -number

    return max((number for number, load in taking.items() if load <= bound), key=value)


class PrefixIndex:
    """Which blocks each replica was sent, as far as it may still have them: the `capacity` it used last."""

    def __init__(self, replicas: int, capacity: int) -> None:
        """Start with none."""
        self._capacity = capacity
        self._sent: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(replicas)]  # the oldest first

    def depths(self, names: Sequence[bytes]) -> list[int]:
        """Return how many of a prompt's first blocks each replica has."""
        return [next((i for i, name in enumerate(names) if name not in sent), len(names)) for sent in self._sent]

    def add(self, replica: int, names: Sequence[bytes]) -> None:
        """Record that a replica gets a prompt with these blocks."""
        sent = self._sent[replica]
        for name in reversed(names):  # as in the cache, a prefix loses its end before its beginning
            sent[name] = None
            sent.move_to_end(name)
        while len(sent) > self._capacity:
            sent.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Record that a replica's cache is empty."""
        self._sent[replica].clear()
