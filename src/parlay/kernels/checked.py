"""The native kernels with their offsets checked, to find who gives them a wrong one (PARLAY_CHECK_KERNELS=1).

The kernels always check dtypes and shapes, but trust the numbers in slots, block tables, row offsets and token ids: a
wrong one reads or writes memory of something else. Here each is compared with the sizes first, which takes longer
than many an operation. Results are the same, bit by bit.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from parlay.kernels.cpu import NativeKernels
from parlay.kernels.linear import LinearWeight
from parlay.kernels.views import AttentionView


class CheckedKernels(NativeKernels):
    """`NativeKernels` that raise an `IndexError` which names the argument before an operation uses a wrong offset."""

    def __init__(self, isa: str | None = None) -> None:
        """As `NativeKernels`."""
        super().__init__(isa)
        self._recorded: list[Callable[[], None]] | None = None

    def record(self, work: Callable[[], object]) -> Callable[[], None]:
        """As `NativeKernels`; before each run of the recording all its offsets are checked, as they are then."""
        checks = self._recorded = []
        try:
            replay = super().record(work)
        finally:
            self._recorded = None

        def run() -> None:
            for check in checks:
                check()
            replay()

        return run

    def _check(self, check: Callable[..., None], *args: object) -> None:
        check(*args)
        if self._recorded is not None:
            self._recorded.append(partial(check, *args))

    def embed(self, weight: Tensor, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        self._check(_expect, "embed", "tokens", tokens, 0, len(weight))
        super().embed(weight, tokens, out)

    def embed_packed(self, weight: LinearWeight, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        self._check(_expect, "embed_packed", "tokens", tokens, 0, weight.outputs)
        super().embed_packed(weight, tokens, out)

    def add_embedding(self, x: Tensor, weight: Tensor, index: Tensor) -> None:  # noqa: D102
        self._check(_expect, "add_embedding", "index", index, 0, len(weight))
        super().add_embedding(x, weight, index)

    def rotary_store(  # noqa: D102
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        q_out: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
    ) -> None:
        self._check(_expect, "rotary_store", "positions", positions, 0, len(cos_sin))
        self._check(_expect, "rotary_store", "slots", slots, None, _slots(key_cache))  # negative: nothing is stored
        super().rotary_store(qkv, positions, slots, cos_sin, q_out, key_cache, value_cache)

    def attention(  # noqa: D102
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        view: AttentionView,
        scale: float,
        out: Tensor,
        window: int = 0,
        cap: float = 0.0,
    ) -> None:
        self._check(_check_view, view, key_cache, window)
        super().attention(q, key_cache, value_cache, view, scale, out, window, cap)

    def expert_linear(  # noqa: D102
        self, x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor
    ) -> None:
        self._check(_expect, "expert_linear", "experts", experts, 0, len(weights))
        super().expert_linear(x, experts, weights, out)

    def excess(  # noqa: D102
        self,
        target: Tensor,
        draft: Tensor,
        scales: Tensor,
        mass: Tensor,
        out: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> None:
        if ids is not None:
            self._check(_expect, "excess", "ids", ids, 0, target.shape[1])
        super().excess(target, draft, scales, mass, out, ids)

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        self._check(_expect, "copy_slots", "src_slots", src_slots, 0, _slots(key_cache))
        self._check(_expect, "copy_slots", "dst_slots", dst_slots, 0, _slots(key_cache))
        super().copy_slots(src_slots, dst_slots, key_cache, value_cache)


def _slots(cache: Tensor) -> int:
    blocks, _, block_size, _ = cache.shape
    return blocks * block_size


def _check_view(view: AttentionView, key_cache: Tensor, window: int) -> None:
    blocks, _, block_size, _ = key_cache.shape
    requests, width = view.tables.shape
    expect = partial(_expect, "attention")
    expect("row_request", view.row_request, 0, requests)
    expect("first", view.first, 0, width * block_size + 1)
    expect("last", view.last, view.first, width * block_size + 1)
    expect("extra_offsets", view.extra_offsets, 0, len(view.extra_slots) + 1)
    starts, ends = view.extra_offsets[:-1], view.extra_offsets[1:]
    expect("extra_offsets", ends, starts, len(view.extra_slots) + 1)
    if len(starts):
        expect("extra_slots", view.extra_slots[int(starts[0]) : int(ends[-1])], 0, blocks * block_size)
    first = view.first if not window else view.first.maximum(view.last + (ends - starts) - window)
    column = torch.arange(width, dtype=torch.int32)
    seen = (column >= (first // block_size)[:, None]) & (column * block_size < view.last[:, None])
    tables = view.tables[view.row_request.long()].where(seen, 0)
    expect("tables[row_request]", tables, 0, blocks)


def _expect(operation: str, name: str, values: Tensor, least: Tensor | int | None, size: int) -> None:
    """Check that values are at least `least`, unless that is None, and below `size`."""
    wrong = values >= size
    if least is not None:
        wrong |= values < least
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        lowest = least if not isinstance(least, Tensor) else int(least[at])
        limits = f"below {size}" if lowest is None else f"from {lowest} to {size - 1}"
        raise IndexError(f"{operation}: {name}{list(at)} is {int(values[at])}, not {limits}")
