"""The pool of cache blocks: which are in use, and whose contents can be found again.

A block is in exactly one of three states:
    held      one or more tables refer to it (`references > 0`)
    cached    no table does, but its content has a name and can be found again; evicted oldest first
    free      neither
"""

from collections import OrderedDict, deque
from collections.abc import Iterable

from parlay.errors import CapacityError


class BlockPool:
    """Fixed-size blocks, identified by number; independent of requests, layers and tensors."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        # Layer groups besides the target's whose keys and values in the block are complete.
        self._valid: dict[int, set[str]] = {}

    @property
    def available(self) -> int:
        """How many blocks `take` can give."""
        return len(self._free) + len(self._cached)

    def take(self) -> int:
        """Return a block for one new holder, evicting the oldest cached content if nothing is free.

        Raises:
            CapacityError: every block is held.
        """
        if self._free:
            block = self._free.popleft()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget_content(block)
        else:
            raise CapacityError("every cache block is in use; raise kv_cache_memory or lower max_num_seqs")
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block that `find` returned."""
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Remove a holder; content that has a name can be found until it is evicted."""
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._hash[block] is None:
                self._valid.pop(block, None)
                self._free.append(block)
            else:
                self._cached[block] = None

    def publish(self, block: int, name: bytes) -> None:
        """Name the content of a full block of verified tokens. The first block with a name keeps it."""
        if self._hash[block] is None and name not in self._by_hash:
            self._hash[block] = name
            self._by_hash[name] = block

    def forget(self, name: bytes) -> None:
        """Let content of this name no longer be found; its block is free if no table holds it."""
        block = self._by_hash.get(name)
        if block is None:
            return
        self._forget_content(block)
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def find(self, name: bytes) -> int | None:
        """Return the block whose content has this name."""
        return self._by_hash.get(name)

    def mark_valid(self, block: int, group: str) -> None:
        """Record that a further layer group's keys and values in the block are complete."""
        self._valid.setdefault(block, set()).add(group)

    def is_valid(self, block: int, group: str) -> bool:
        """Whether a further layer group's keys and values in the block are complete."""
        return group in self._valid.get(block, ())

    def _forget_content(self, block: int) -> None:
        name = self._hash[block]
        if name is not None:
            del self._by_hash[name]
            self._hash[block] = None
        self._valid.pop(block, None)

    def reset(self) -> None:
        """Take every block from its holders, in any state; named content can still be found."""
        self._references, self._by_hash = [0] * self.num_blocks, {}
        for block, name in enumerate(self._hash):
            if name is not None and self._by_hash.setdefault(name, block) != block:
                self._hash[block] = None
        named = dict.fromkeys(self._by_hash.values())
        self._cached = OrderedDict.fromkeys([*(block for block in self._cached if block in named), *named])
        self._free = deque(block for block in range(self.num_blocks) if self._hash[block] is None)
        for block in self._free:
            self._valid.pop(block, None)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Recount every block against the tables that exist.

        Raises:
            AssertionError: a block is lost, held twice, or wrongly findable.
        """
        counts, held = [0] * self.num_blocks, set[int]()
        for table in tables:
            held.update(table)
            for block in table:
                counts[block] += 1
        assert counts == self._references, f"holders of blocks: {counts} counted, {self._references} noted"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert len(free) + len(cached) + len(held) == self.num_blocks, "a block is in no or several states"
        assert free | cached | held == set(range(self.num_blocks)), "a block is in no or several states"
        assert all(self._hash[block] is not None for block in cached), "a block is cached without a name"
        assert free.isdisjoint(self._valid), "a block is free but marked valid"
        assert self._hash.count(None) + len(self._by_hash) == self.num_blocks, "a block's name leads elsewhere"
        assert all(self._hash[block] == name for name, block in self._by_hash.items()), "a name leads elsewhere"
