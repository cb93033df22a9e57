"""The native kernels with their offsets checked, to find who gives them a wrong one (PARLAY_CHECK_KERNELS=1).

The kernels always check dtypes and shapes, but trust the numbers in slots, block tables, row offsets and token ids: a
wrong one reads or writes memory of something else. Here each is compared with the sizes first, which takes longer
than many an operation. Results are the same, bit by bit.
"""

from collections.abc import Callable, Mapping, Sequence
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
        for name, check in _CHECKS.items():
            setattr(self, name, self._checked(getattr(self, name), check))

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

    def _checked(self, operation: Callable[..., None], check: Callable[..., None]) -> Callable[..., None]:
        def run(*args: object, **named: object) -> None:
            check(*args, **named)
            if self._recorded is not None:
                self._recorded.append(partial(check, *args, **named))
            operation(*args, **named)

        return run


def _embed(weight: Tensor, tokens: Tensor, out: Tensor) -> None:
    _expect("embed", "tokens", tokens, 0, len(weight))


def _embed_packed(weight: LinearWeight, tokens: Tensor, out: Tensor) -> None:
    _expect("embed_packed", "tokens", tokens, 0, weight.outputs)


def _add_embedding(x: Tensor, weight: Tensor, index: Tensor) -> None:
    _expect("add_embedding", "index", index, 0, len(weight))


def _rotary_store(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor,
    q_out: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> None:
    _expect("rotary_store", "positions", positions, 0, len(cos_sin))
    _expect("rotary_store", "slots", slots, None, _slots(key_cache))  # of rows with a negative one nothing is stored


def _expert_linear(x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor) -> None:
    _expect("expert_linear", "experts", experts, 0, len(weights))


def _excess(
    target: Tensor,
    draft: Tensor,
    scales: Tensor,
    mass: Tensor,
    out: Tensor | None = None,
    ids: Tensor | None = None,
) -> None:
    if ids is not None:
        _expect("excess", "ids", ids, 0, target.shape[1])


def _copy_slots(src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    _expect("copy_slots", "src_slots", src_slots, 0, _slots(key_cache))
    _expect("copy_slots", "dst_slots", dst_slots, 0, _slots(key_cache))


def _attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    view: AttentionView,
    scale: float,
    out: Tensor,
    window: int = 0,
    cap: float = 0.0,
) -> None:
    block_size = key_cache.shape[2]
    requests, width = view.tables.shape
    expect = partial(_expect, "attention")
    expect("row_request", view.row_request, 0, requests)
    expect("first", view.first, 0, width * block_size + 1)
    expect("last", view.last, view.first, width * block_size + 1)
    expect("extra_offsets", view.extra_offsets, 0, len(view.extra_slots) + 1)
    starts, ends = view.extra_offsets[:-1], view.extra_offsets[1:]
    expect("extra_offsets", ends, starts, len(view.extra_slots) + 1)
    if len(starts):
        expect("extra_slots", view.extra_slots[int(starts[0]) : int(ends[-1])], 0, _slots(key_cache))
    first = view.first if not window else view.first.maximum(view.last + (ends - starts) - window)
    column = torch.arange(width, dtype=torch.int32)
    seen = (column >= (first // block_size)[:, None]) & (column * block_size < view.last[:, None])
    tables = view.tables[view.row_request.long()].where(seen, 0)
    expect("tables[row_request]", tables, 0, len(key_cache))


def _slots(cache: Tensor) -> int:
    blocks, _, block_size, _ = cache.shape
    return blocks * block_size


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


# By operation; each takes the operation's arguments.
_CHECKS: Mapping[str, Callable[..., None]] = {
    "embed": _embed,
    "embed_packed": _embed_packed,
    "add_embedding": _add_embedding,
    "rotary_store": _rotary_store,
    "attention": _attention,
    "expert_linear": _expert_linear,
    "excess": _excess,
    "copy_slots": _copy_slots,
}
