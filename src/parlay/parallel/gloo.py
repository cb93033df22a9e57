"""Exchange of columns among ranks of several machines over the network, by gloo (the library within torch)."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # its stubs lack both
from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]

from parlay.errors import RankError

_REACHING = 20.0  # seconds; looking up the names of addresses may take some of them


def make_store(host: str) -> TCPStore:
    """Return the store with which the ranks of a group find each other; this process keeps it.

    Args:
        host: an address of this machine that the others reach.
    """
    return TCPStore(host, 0, is_master=True, wait_for_workers=False)


def drafts(store: TCPStore) -> PrefixStore:
    """Return the part of a store where the ranks that share a draft model find each other."""
    return PrefixStore("drafts", store)


def reach_store(host: str, port: int) -> TCPStore:
    """Return the store that another machine keeps.

    Raises:
        RankError: it cannot be reached.
    """
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_REACHING))
    except RuntimeError as error:
        raise RankError(
            f"{host}:{port}, where ranks find each other, cannot be reached: {_first_line(error)}"
        ) from None


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
        patience: float,
        meeting: float = _REACHING,
    ) -> None:
        """Connect to the other ranks, all of which do the same.

        Args:
            store: where they find each other.
            rank: of this process.
            size: of the group.
            host: the address at which this process listens.
            patience: seconds after which a rank that does not come to an exchange is given up.
            meeting: seconds, if that is longer, that a rank may take to connect.

        Raises:
            RankError: one does not come.
        """
        self._size = size
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=max(patience, meeting))
        self._options = AllgatherOptions()
        self._options.timeout = timedelta(seconds=patience)
        try:
            self._group = gloo(store, rank, size, options)
        except RuntimeError as error:
            raise RankError(f"the ranks of this engine do not reach each other: {_first_line(error)}") from None

    def gather(self, own: Tensor, out: Tensor, bounds: tuple[int, ...]) -> None:
        """See `parlay.parallel.group.Exchange`; shares are sent padded to the widest."""
        widths = [end - begin for begin, end in pairwise(bounds)]
        sent = own.new_zeros((own.shape[0], max(widths)))
        sent[:, : own.shape[1]] = own
        came = own.new_empty((self._size, *sent.shape))
        bytes_of = [list(came.view(torch.uint8).unbind(0))], [sent.view(torch.uint8)]
        try:
            self._group.allgather(*bytes_of, self._options).wait()
        except RuntimeError as error:
            raise RankError(f"a rank of this engine is lost ({_first_line(error)}); start the engine again") from None
        for begin, width, share in zip(bounds, widths, came, strict=False):
            out[:, begin : begin + width] = share[:, :width]


def _first_line(error: RuntimeError) -> str:
    return str(error).splitlines()[0][:200]
