"""The batches of recorded passes on a GPU: all arrays of one lie in one buffer, which one copy fills."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Filters, Kernels, StateMetadata
from parlay.kernels.uploads import aligned, sent
from parlay.runner.batch import Batch, copy_batch, first_rows
from parlay.sampling.sampler import SamplingMetadata

_FURTHER = 1 << 22  # bytes for further arrays, such as the block tables of 64 drafts of long texts

_Array = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """What a recorded pass reads, in host or in device memory.

    Attributes:
        batch: the rows of the pass.
        draws: sampling parameters of its rows, if it samples.
        end: bytes of the buffer up to the block tables, which come last.
    """

    batch: Batch
    draws: SamplingMetadata
    end: int


class GraphInputBuffers:
    """The memory of one model's recorded passes."""

    def __init__(self, kernels: Kernels, rows: int, blocks: int, places: int | None) -> None:
        """Allocate the inputs of passes of up to `rows` rows.

        Args:
            kernels: operations that read the inputs.
            rows, blocks: most rows of a pass, and most blocks per request.
            places: number of places for draft nodes; None for a model without recurrent layers.
        """
        self._blocks, self._places = blocks, places
        whole = sum(aligned(_bytes(array)) for array in self._arrays(rows))
        self._kernels, self._staging = kernels, kernels.staging(whole + _FURTHER)
        self._here: dict[int, GraphInputs] = {}  # by rows

    def inputs(self, rows: int) -> GraphInputs:
        """Return what passes of so many rows read, where kernels read it."""
        return self._views(rows, self._staging.device)

    def fill(
        self, batch: Batch, draws: SamplingMetadata | None, size: int, further: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Send a batch of the host, and what its tokens are drawn with, to a pass of `size` rows.

        Rows beyond those of the batch see no keys, and what they leave goes nowhere.

        Args:
            batch: batch in host memory.
            draws: sampling parameters of its rows, if the pass samples.
            size: number of rows of the pass.
            further: further arrays of the host, for which the same copy usually has room.

        Returns:
            The further arrays where kernels read them, valid until the next batch.
        """
        rows = len(batch.tokens)
        if (own := self._here.get(size)) is None:
            own = self._here[size] = self._views(size, self._staging.host)
        to, view = own.batch, own.batch.view
        self._staging.renew()
        copy_batch(batch, to if rows == size else first_rows(to, rows))
        for source, target in zip([] if draws is None else draws.tensors, own.draws.tensors, strict=False):
            target[:rows] = source
        if rows < size:
            for target in (to.tokens, to.positions, view.row_request, view.first, view.last, *own.draws.tensors):
                target[rows:] = 0
            to.slots[rows:] = -1
            if to.states is not None:
                to.states.sequences[rows:] = 0
                to.states.rows[rows:] = -1
            view.extra_offsets[rows + 1 :] = view.extra_offsets[rows]
        end = aligned(own.end + len(batch.view.tables) * self._blocks * view.tables.element_size())
        begins = [*accumulate((aligned(array.nbytes) for array in further), initial=end)]
        if begins[-1] > len(self._staging.host):
            self._staging.send(end)
            return sent(self._kernels, further)
        places = [slice(begin, begin + array.nbytes) for begin, array in zip(begins, further, strict=False)]
        for place, array in zip(places, further, strict=True):
            self._staging.host[place].view(array.dtype).view(array.shape).copy_(array)
        self._staging.send(begins[-1])
        pairs = zip(places, further, strict=True)
        return [self._staging.device[place].view(array.dtype).view(array.shape) for place, array in pairs]

    def _arrays(self, rows: int) -> list[_Array]:
        """Return the arrays of a pass, in their order in the buffer."""
        whole, real = torch.int64, torch.float64
        arrays: list[_Array] = [((rows,), whole), ((rows,), torch.int32), ((rows,), whole)]
        arrays += [((count,), torch.int32) for count in (rows, rows, rows, rows + 1, rows * rows)]
        if self._places is not None:
            arrays += [((rows, 5), torch.int32), ((rows, 4), torch.int32), ((self._places, 2), torch.int32)]
        arrays += [((rows,), dtype) for dtype in (torch.float32, whole, whole, real, whole, real)]
        return [*arrays, ((rows, self._blocks), torch.int32)]

    def _views(self, rows: int, buffer: Tensor) -> GraphInputs:
        begin, end, views = 0, 0, list[Tensor]()
        for array in self._arrays(rows):
            shape, dtype = array
            end = begin
            views.append(buffer[begin : begin + _bytes(array)].view(dtype).view(shape))
            begin = aligned(begin + _bytes(array))
        tokens, positions, slots, owner, first, last, offsets, extra, *others, tables = views
        *states, temperatures, seeds, at, min_p, top_k, top_p = others
        batch = Batch(
            *(tokens, positions, slots, AttentionMetadata(tables, owner, first, last, offsets, extra), ()),
            StateMetadata(*states) if states else None,
        )
        return GraphInputs(batch, SamplingMetadata(temperatures, seeds, at, Filters(min_p, top_k, top_p)), end)


def _bytes(array: _Array) -> int:
    shape, dtype = array
    return prod(shape) * dtype.itemsize
