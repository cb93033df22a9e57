"""One request's block table: from logical token index to block."""

from collections.abc import Iterable, Sequence

from parlay.kv.pool import BlockPool
from parlay.kv.prefix import block_hash, root_hash
from parlay.kv.recurrent_states import SequenceStates
from parlay.types.plan import NO_STATES, StateUse


class BlockTable:
    """The blocks that hold one request's tokens, in order, and its states. Token i lies in block i // block_size.

    Attributes:
        blocks: ids of the blocks.
        states: states of the target's recurrent layers; None where it has none.
        draft_states: states of a proposer's recurrent layers, which advance separately; None where it has none.
    """

    def __init__(
        self,
        pool: BlockPool,
        salt: str = "",
        states: SequenceStates | None = None,
        draft_states: SequenceStates | None = None,
    ) -> None:
        self._pool = pool
        self.states, self.draft_states = states, draft_states
        self._salt = salt
        self._hashes: list[bytes] = []  # hashes of full blocks, as far as computed
        self._published = 0
        self.blocks: list[int] = []

    def grow(self, tokens: int) -> bool:
        """Take blocks until `tokens` fit. Takes none and returns False if the pool has too few."""
        missing = -(-tokens // self._pool.block_size) - len(self.blocks)
        if missing > self._pool.available:
            return False
        self.blocks.extend(self._pool.take() for _ in range(missing))
        return True

    def trim(self, tokens: int) -> None:
        """Give back the blocks beyond those that `tokens` need."""
        keep = -(-tokens // self._pool.block_size)
        while len(self.blocks) > keep:
            self._pool.release(self.blocks.pop())

    def release(self) -> None:
        """Give back every block."""
        # Last block first, so that the end of a cached prefix is evicted before its beginning.
        self.trim(0)
        self._published = 0
        if self.states is not None:
            self.states.release()
        self.release_draft()

    def release_draft(self) -> None:
        """Give back a proposer's states."""
        if self.draft_states is not None:
            self.draft_states.release()

    def drop(self) -> None:
        """Forget every block, which the pool takes back by `BlockPool.reset`."""
        self.blocks, self._published = [], 0
        for states in (self.states, self.draft_states):
            if states is not None:
                states.drop()

    def adopt_prefix(self, tokens: Sequence[int]) -> int:
        """Share the longest cached run of full blocks that begins `tokens`; the table must be empty.

        At least one token stays outside, since its logits are needed. With states the run ends at a checkpoint.

        Returns:
            How many tokens the shared blocks hold.
        """
        size, states = self._pool.block_size, self.states
        found: list[int] = []
        for index in range((len(tokens) - 1) // size):
            block = self._pool.find(self._name(tokens, index))
            if block is None:
                break
            found.append(block)
        while states is not None and found and not states.find(self._hashes[len(found) - 1]):
            found.pop()
        for block in found:
            self._pool.share(block)
        if states is not None and found:
            states.adopt(self._hashes[len(found) - 1], len(found) * size)
        self.blocks = found
        self._published = len(found)
        return len(found) * size

    def begin(self, end: int, nodes: int, prompt: int, *, keep: bool) -> StateUse:
        """Return the states' part of a plan; see `SequenceStates.begin`."""
        if self.states is None:
            return NO_STATES
        return self.states.begin(end, nodes, prompt, self._pool.block_size, keep=keep)

    def advance(self, path: Iterable[int], tokens: Sequence[int]) -> None:
        """Take over the states that a step has left; checkpoints are named after the first of the `tokens`."""
        if self.states is not None:
            self.states.commit(path, lambda count: self._name(tokens, count // self._pool.block_size - 1))

    def adopt_draft(self, tokens: int) -> int:
        """Continue from a proposer's last checkpoint in an adopted prefix's first `tokens`; return where it is."""
        size, states = self._pool.block_size, self.draft_states
        if states is None:
            return tokens
        count = tokens // size
        while count and not states.find(self._hashes[count - 1]):
            count -= 1
        if count:
            states.adopt(self._hashes[count - 1], count * size)
        return count * size

    def begin_draft(self, end: int, prompt: int, *, keep: bool) -> StateUse:
        """Return the proposer's states' part of a plan, in which its layers come at most to `end` tokens."""
        if self.draft_states is None:
            return NO_STATES
        return self.draft_states.begin(end, 0, prompt, self._pool.block_size, keep=keep)

    def advance_draft(self, end: int, tokens: Sequence[int]) -> None:
        """Take over a proposer's states, which are of `end` tokens now."""
        if self.draft_states is not None:
            self.draft_states.commit((), lambda count: self._name(tokens, count // self._pool.block_size - 1), end)

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Make the full blocks among the first `computed` verified tokens findable."""
        for index in range(self._published, computed // self._pool.block_size):
            self._pool.publish(self.blocks[index], self._name(tokens, index))
            self._published = index + 1

    def valid_tokens(self, group: str, limit: int) -> int:
        """Return how many of the first `limit` tokens lie in leading blocks valid for a layer group."""
        size = self._pool.block_size
        count = 0
        while count + size <= limit and self._pool.is_valid(self.blocks[count // size], group):
            count += size
        return count

    def mark_valid(self, group: str, start: int, end: int) -> None:
        """Record that a layer group has computed the tokens up to `end`, having begun this time at `start`."""
        size = self._pool.block_size
        for index in range(start // size, end // size):
            self._pool.mark_valid(self.blocks[index], group)

    def _name(self, tokens: Sequence[int], index: int) -> bytes:
        size = self._pool.block_size
        while len(self._hashes) <= index:
            at = len(self._hashes)
            parent = self._hashes[-1] if at else root_hash(self._salt)
            self._hashes.append(block_hash(parent, tokens[at * size : (at + 1) * size]))
        return self._hashes[index]
