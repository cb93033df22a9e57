"""States of recurrent layers: one slot for each running sequence, checkpoints at block boundaries.

A state covers all tokens before it and cannot be rolled back. So a step reads a slot and stores to another one: a
step that is repeated finds what it found before. Draft nodes advance no slot; their inputs lie at places, and the
next step applies those of the accepted ones first. A slot that has the name of a prefix is a checkpoint, from which
any request with that prefix may continue; it is never written again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from parlay.kv.pool import BlockPool
from parlay.types.cache import StateCapacity
from parlay.types.plan import StateUse

# Tokens between checkpoints: a hit runs at most as many again, and a state is as large as the keys and values of
# hundreds to thousands of tokens.
EVERY = 256


class StatePool:
    """The slots and places of all requests."""

    def __init__(self, room: StateCapacity) -> None:
        """Start with all of them free."""
        self._room = room
        self.slots = BlockPool(room.slots, 1)
        self._places = list(range(room.places))

    @property
    def sequences(self) -> int:
        """How many sequences may run: each holds the slot that it reads and the one that it stores to."""
        return self._room.slots // 2

    @property
    def places(self) -> int:
        """How many draft nodes there is room for."""
        return len(self._places)

    def take_places(self, count: int) -> tuple[int, ...]:
        """Return places for so many draft nodes."""
        taken = self._places[len(self._places) - count :]
        del self._places[len(self._places) - count :]
        return tuple(taken)

    def free_places(self, places: Iterable[int]) -> None:
        """Take places back."""
        self._places.extend(places)

    def reset(self) -> None:
        """Take everything from its holders; checkpoints can still be found."""
        self.slots.reset()
        self._places = list(range(self._room.places))

    def check(self, states: Iterable["SequenceStates"]) -> None:
        """Recount every slot and place.

        Raises:
            AssertionError: one is lost or held twice.
        """
        holders = list(states)
        self.slots.check(holder.held for holder in holders)
        places = [*self._places, *(place for holder in holders for place in holder.held_places)]
        assert sorted(places) == list(range(self._room.places)), "a place is lost or held twice"


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step that is not committed was given.

    Attributes:
        end: number of tokens before its draft.
        stores: slots that it stores to, by number of tokens.
        places: places of its nodes.
        lasting: token counts after which there is to be a checkpoint.
        newest: token count after which there is to be one until there is a newer one; 0 for none.
    """

    end: int
    stores: dict[int, int]
    places: tuple[int, ...]
    lasting: tuple[int, ...]
    newest: int


class SequenceStates:
    """The states of one request."""

    def __init__(self, pool: StatePool) -> None:
        """Start without states."""
        self._pool = pool
        self._slot = -1
        self._tokens = 0  # tokens that the slot's state covers
        self._accepted: tuple[int, ...] = ()
        self._step: _Step | None = None
        self._newest: bytes | None = None  # name of a checkpoint that the next one replaces

    @property
    def held(self) -> list[int]:
        """The slots that it holds."""
        stores = [] if self._step is None else [*self._step.stores.values()]
        return [slot for slot in (self._slot, *stores) if slot >= 0]

    @property
    def held_places(self) -> tuple[int, ...]:
        """The places that it holds."""
        return self._accepted + (() if self._step is None else self._step.places)

    def find(self, name: bytes) -> bool:
        """Whether there is a checkpoint of the prefix with this name."""
        return self._pool.slots.find(name) is not None

    def adopt(self, name: bytes, tokens: int) -> None:
        """Continue from the checkpoint with this name, of so many tokens."""
        slot = self._pool.slots.find(name)
        assert slot is not None
        self._pool.slots.share(slot)
        self._slot, self._tokens = slot, tokens

    def begin(self, end: int, nodes: int, prompt: int, block_size: int, *, keep: bool) -> StateUse:
        """Return the part of a plan for the states.

        Args:
            end: number of tokens that the request's cache layers will have after the step, its draft apart.
            nodes: number of nodes of the draft.
            prompt: number of tokens of the prompt.
            block_size: tokens per block; checkpoints are at their ends.
            keep: whether checkpoints are wanted.
        """
        self._give_back()
        slots, every = self._pool.slots, -(-EVERY // block_size) * block_size
        last, newest = ((n // block_size * block_size) for n in (prompt - 1, end))
        lasting = {*range(self._tokens // every * every + every, end + 1, every), last}
        stores = {end: slots.take()}
        for tokens in sorted({*lasting, newest}) if keep else ():
            # A sequence that runs always finds a slot, so checkpoints take what is not needed for that.
            if self._tokens < tokens < end and slots.available > self._pool.sequences:
                stores[tokens] = slots.take()
        named = tuple(sorted(lasting & stores.keys())) if keep else ()
        is_newest = keep and newest in stores and newest > prompt and newest not in lasting
        self._step = _Step(end, stores, self._pool.take_places(nodes), named, newest if is_newest else 0)
        return StateUse(
            source=self._slot,
            accepted=self._accepted,
            stores=tuple((tokens - self._tokens, slot) for tokens, slot in stores.items()),
            places=self._step.places,
        )

    def commit(self, path: Iterable[int], name: Callable[[int], bytes], end: int | None = None) -> None:
        """Take over what a step has left.

        Args:
            path: the nodes that were accepted, in order.
            name: function that returns the name of the prefix of so many tokens, whole blocks of them.
            end: number of tokens that the layers have now, if fewer than planned. The last state is then of these,
                and those behind fewer tokens are where they were planned.
        """
        step = self._step
        assert step is not None
        end = step.end if end is None else end
        self._free(self._slot, self._accepted)
        self._accepted = tuple(step.places[node] for node in path)
        self._pool.free_places(place for place in step.places if place not in self._accepted)
        last = step.stores[step.end]
        stores = {tokens: slot for tokens, slot in step.stores.items() if tokens < end} | {end: last}
        for tokens in step.lasting:
            if tokens in stores:
                self._pool.slots.publish(stores[tokens], name(tokens))
        if step.newest in stores:
            before, self._newest = self._newest, name(step.newest)
            self._pool.slots.publish(stores[step.newest], self._newest)
            if before is not None:
                self._pool.slots.forget(before)
        for slot in step.stores.values():
            if slot != last:
                self._pool.slots.release(slot)
        self._slot, self._tokens, self._step = last, end, None

    def release(self) -> None:
        """Give everything back."""
        self._give_back()
        self._free(self._slot, self._accepted)
        self.drop()

    def drop(self) -> None:
        """Forget everything, which the pool takes back by `StatePool.reset`."""
        self._slot, self._tokens, self._accepted, self._step, self._newest = -1, 0, (), None, None

    def _give_back(self) -> None:
        """Undo a step that was not committed."""
        if self._step is not None:
            self._pool.free_places(self._step.places)
            for slot in self._step.stores.values():
                self._pool.slots.release(slot)
            self._step = None

    def _free(self, slot: int, places: Iterable[int]) -> None:
        if slot >= 0:
            self._pool.slots.release(slot)
        self._pool.free_places(places)


def begin_on(pool: StatePool | None) -> SequenceStates | None:
    """Return the states of a new request; None where there are none."""
    return None if pool is None else SequenceStates(pool)
