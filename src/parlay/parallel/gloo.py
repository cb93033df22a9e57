"""Exchange among ranks of several machines over the network, by gloo (the library within torch)."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from socket import AF_INET, AF_INET6, create_server
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # its stubs lack both
from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]

from parlay.errors import RankError
from parlay.parallel.group import RankPosition

_REACHING = 20.0  # seconds; looking up the names of addresses may take some of them


def make_store(host: str) -> TCPStore:
    """Return the rendezvous store of a group's ranks, which all of them use by `connect_store`.

    It does not authenticate its clients, and listens as long as this object lives.

    Args:
        host: an address of this machine that the others reach; nothing listens on another one.

    Raises:
        RankError: this machine does not have it.
    """
    try:
        server = create_server((host, 0), family=AF_INET6 if ":" in host else AF_INET)
    except OSError as error:
        raise RankError(f"the rendezvous of the ranks cannot listen at {host}: {error.strerror}") from None
    port = server.getsockname()[1]
    # Given only an address, it would listen on all that the machine has.
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def connect_store(host: str, port: int) -> TCPStore:
    """Return the store that this or another machine keeps.

    Raises:
        RankError: it cannot be reached.
    """
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_REACHING))
    except RuntimeError as error:
        raise RankError(
            f"the rendezvous of the ranks at {host}:{port} cannot be reached: {_first_line(error)}"
        ) from None


def connect_ranks(
    store: TCPStore, host: str, position: RankPosition, timeout: float
) -> "tuple[Gloo | None, GlooRing | None, Gloo | None]":
    """Return how a rank reaches those of its stage, the stages before and after, and those that share a proposer.

    Args:
        store: store in which all ranks find each other; all of them call this.
        host: the address at which this process listens.
        position: position of the rank among all.
        timeout: seconds after which a rank that does not come is given up.

    Raises:
        RankError: one does not come.
    """
    exchange = ring = drafts = None
    if position.tp_size > 1:
        own = PrefixStore(f"stage {position.stage}", store)
        exchange = Gloo(own, position.tp_rank, position.tp_size, host, timeout)
    if position.stages > 1:
        own = PrefixStore(f"ring {position.tp_rank}", store)
        ring = GlooRing(own, position.stage, position.stages, host, timeout)
    if position.draft_tp_size:
        drafts = Gloo(PrefixStore("drafts", store), position.rank, position.draft_tp_size, host, timeout)
    return exchange, ring, drafts


class Gloo:
    """An `Exchange` over TCP, of which passes cannot be recorded.

    Neither gloo nor its store authenticates its peers: they are for a network whose machines are trusted.
    """

    recordable = False

    def __init__(
        self,
        store: TCPStore | PrefixStore,
        rank: int,
        size: int,
        host: str,
        timeout: float,
        connect_timeout: float = _REACHING,
    ) -> None:
        """Connect to the other ranks, all of which do the same.

        Args:
            store: store in which they find each other.
            rank: index of this process in the group.
            size: number of ranks in the group.
            host: the address at which this process listens.
            timeout: seconds after which a rank that does not come to an exchange is given up.
            connect_timeout: seconds, if that is longer, that a rank may take to connect.

        Raises:
            RankError: one does not come.
        """
        self._size = size
        self._group = _group(store, rank, size, host, max(timeout, connect_timeout))
        self._options = AllgatherOptions()
        self._options.timeout = timedelta(seconds=timeout)

    def close(self) -> None:
        """Leave the group. Its threads hold tensors, which they must not drop while the interpreter ends."""
        self._group = None

    def gather(self, own: Tensor, out: Tensor, bounds: tuple[int, ...]) -> None:
        """See `parlay.parallel.group.Exchange`; shares are sent padded to the widest."""
        widths = [end - begin for begin, end in pairwise(bounds)]
        sent = own.new_zeros((own.shape[0], max(widths)))
        sent[:, : own.shape[1]] = own
        came = own.new_empty((self._size, *sent.shape))
        bytes_of = [list(came.view(torch.uint8).unbind(0))], [sent.view(torch.uint8)]
        with _rank_errors():
            self._group.allgather(*bytes_of, self._options).wait()
        for begin, width, share in zip(bounds, widths, came, strict=False):
            out[:, begin : begin + width] = share[:, :width]


class GlooRing:
    """A `Channel` over TCP, with the limits of `Gloo`."""

    def __init__(self, store: PrefixStore, rank: int, size: int, host: str, timeout: float) -> None:
        """Connect to the other ranks, all of which do the same.

        Args:
            store: store in which they find each other.
            rank: index of this process, which sends to the next and receives from the one before.
            size: number of ranks in the ring; as many messages may be under way from each.
            host: the address at which this process listens.
            timeout: seconds after which a rank that does not come is given up.

        Raises:
            RankError: one does not come.
        """
        self._next, self._before, self._size = (rank + 1) % size, (rank - 1) % size, size
        self._group = _group(store, rank, size, host, max(timeout, _REACHING))
        self._timeout = timedelta(seconds=timeout)
        self._sent = deque[tuple[Any, Tensor]]()  # tensors whose memory has to stay until they were received

    def close(self) -> None:
        """See `Gloo.close`."""
        self._group = None
        self._sent.clear()

    def send(self, states: Tensor) -> None:
        """See `parlay.parallel.pipeline.Channel`."""
        states = states.clone()
        with _rank_errors():
            self._sent.append((self._group.send([states.view(torch.uint8)], self._next, 0), states))
            while len(self._sent) > self._size:
                self._sent.popleft()[0].wait(self._timeout)

    def receive(self, states: Tensor) -> None:
        """See `parlay.parallel.pipeline.Channel`."""
        with _rank_errors():
            self._group.recv([states.view(torch.uint8)], self._before, 0).wait(self._timeout)


def _group(store: TCPStore | PrefixStore, rank: int, size: int, host: str, connect_timeout: float) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=connect_timeout)
    try:
        return gloo(store, rank, size, options)
    except RuntimeError as error:
        raise RankError(f"the ranks of this engine cannot connect to each other: {_first_line(error)}") from None


@contextmanager
def _rank_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"a rank of this engine is lost ({_first_line(error)}); start the engine again") from None


def _first_line(error: RuntimeError) -> str:
    return str(error).splitlines()[0][:200]
