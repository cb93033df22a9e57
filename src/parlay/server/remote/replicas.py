"""Several engines behind one link: each request goes to one of them, and stays there."""

import asyncio
from collections.abc import Callable, Sequence

from parlay.errors import CapacityError, ConfigError
from parlay.link.protocol import Abort, Add, Command, EngineReady
from parlay.link.stream import Stream
from parlay.server.remote.replica import Replica
from parlay.server.remote.routing import PrefixIndex, block_names, choose

_MOST_NAMES = 1 << 16  # most blocks that are remembered of a replica


class Replicas:
    """A link to equivalent engines, which starts and ends all of them."""

    def __init__(self, every: Sequence[Replica], block_size: int, stream_of: Callable[[int], Stream]) -> None:
        """Start nothing yet.

        Args:
            every: one or more replicas, none of them started.
            block_size: tokens per cache block.
            stream_of: gives the stream of a request that is sent, by the front's key.
        """
        self.every = every
        self._block_size, self._stream_of = block_size, stream_of
        self._index = PrefixIndex(len(every), 0)
        self._chosen = [-1] * len(every)

    @property
    def serving(self) -> bool:
        """Whether any of them is ready."""
        return any(replica.state == "ready" for replica in self.every)

    async def start(self) -> None:
        """Start all, the first alone, so that errors are reported once, and measurements are made once for all.

        Raises:
            ConfigError, ModelError, CapacityError, EngineDeadError: see `Replica.start`.
        """
        first, *others = self.every
        try:
            await first.start()
            assert first.facts is not None
            self._index = PrefixIndex(len(self.every), min(first.facts.memory.blocks, _MOST_NAMES))
            await asyncio.gather(*(replica.start() for replica in others))
        except CapacityError as error:
            if not others:
                raise
            raise CapacityError(
                f"{error}; each of {len(self.every)} replicas may take as much: fewer (data_parallel_size) get more"
            ) from None

    async def retire(self) -> None:
        """Finish open requests, and accept no more; nothing is restarted."""
        await asyncio.gather(*(replica.retire() for replica in self.every))

    async def end(self) -> None:
        """End all processes, after `retire`."""
        await asyncio.gather(*(replica.end() for replica in self.every))

    def abandon(self) -> None:
        """Leave nothing behind, without an event loop."""
        for replica in self.every:
            replica.abandon()

    def lost(self, replica: Replica) -> None:
        """Record that one of them has lost its cache."""
        self._index.forget(replica.number)

    def send(self, command: Command) -> None:
        """Send a request to one that is ready, or a later command to the one that has the request.

        Raises:
            RequestError: it cannot be encoded.
        """
        if isinstance(command, Add):
            self._route(command)
        elif isinstance(command, Abort):
            for replica in self.every:
                if command.key in replica.open:
                    replica.send(command)

    def leave(self, key: int) -> None:
        """Forget a request whose reader is gone."""
        for replica in self.every:
            replica.leave(key)

    def _route(self, add: Add) -> None:
        stream = self._stream_of(add.key)
        if len(self.every) == 1:
            self.every[0].add(add, stream)
            return
        names = block_names(add.prompt, self._block_size, add.tenant)
        cached = [self._block_size * depth for depth in self._index.depths(names)]
        loads = [replica.load if replica.state == "ready" else None for replica in self.every]
        number = choose(cached, loads, self._chosen)
        self.every[number].add(add, stream)
        self._index.add(number, names)
        self._chosen[number] = add.key  # keys count upward


def check_alike(served: EngineReady, other: EngineReady, number: int) -> None:
    """Refuse a replica whose tokens might differ from those that are served.

    Raises:
        ConfigError: it has another numerics id.
    """
    ours, theirs = served.numerics_id.split("/"), other.numerics_id.split("/")
    if ours == theirs:
        return
    if len(ours) != len(theirs):  # one names a verification, the other has the default one
        ours, theirs = [served.numerics_id], [other.numerics_id]
    differ = ", ".join(f"{b} instead of {a}" for a, b in zip(ours, theirs, strict=True) if a != b)
    raise ConfigError(
        f"replica {number} would give other tokens than those that serve: its numerics id has {differ}; "
        "do not change the model or the installation between the starts of replicas"
    )
