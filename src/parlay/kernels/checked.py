"""The native kernels with their offsets checked, to find the code that passes a wrong one (PARLAY_CHECK_KERNELS=1).

The kernels always check dtypes and shapes, but trust the numbers in slots, block tables, row offsets and token ids: a
wrong one reads or writes memory of something else. Here each is compared with the sizes first, which takes longer
than many an operation. Results are the same, bit by bit.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.cpu import NativeKernels
from parlay.kernels.metadata import AttentionMetadata, StateMetadata

Arguments = Mapping[str, Any]  # of an operation, by their names in `Kernels`


class CheckedKernels(NativeKernels):
    """`NativeKernels` that raise an `IndexError` which names the argument before an operation uses a wrong offset."""

    def __init__(self, isa: str | None = None) -> None:
        """As `NativeKernels`."""
        super().__init__(isa)
        self._recorded: list[Callable[[], None]] | None = None
        for name in _SIZES:
            setattr(self, name, self._checked(name))

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

    def _checked(self, name: str) -> Callable[..., None]:
        # The contract's names of the arguments: native operations have no signatures.
        operation, arguments = getattr(self, name), signature(getattr(Kernels, name))

        def run(*args: object, **named: object) -> None:
            check = partial(_check, name, arguments.bind(self, *args, **named).arguments)
            check()
            if self._recorded is not None:
                self._recorded.append(check)
            operation(*args, **named)

        return run


def _check(operation: str, of: Arguments) -> None:
    if operation == "attention":
        return _check_attention(of["key_cache"], of["view"], of.get("window", 0), of.get("chunk", 0))
    if "states" in of:
        return _check_states(
            operation, of["states"], len(of["tails" if "tails" in of else "stored"]), len(of["kept"])
        )
    for name, size in _SIZES[operation].items():
        if of.get(name) is not None:
            # Of rows with a negative slot nothing is stored.
            _expect(operation, name, of[name], None if name == "slots" else 0, size(of))
    return None


def _check_attention(key_cache: Tensor, view: AttentionMetadata, window: int, chunk: int) -> None:
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
    end = view.last + (ends - starts)
    first = view.first if not window else view.first.maximum(end - window)
    first = first if not chunk else first.maximum((end - 1) // chunk * chunk)
    column = torch.arange(width, dtype=torch.int32)
    seen = (column >= (first // block_size)[:, None]) & (column * block_size < view.last[:, None])
    tables = view.tables[view.row_request.long()].where(seen, 0)
    expect("tables[row_request]", tables, 0, len(key_cache))


def _check_states(operation: str, states: StateMetadata, slots: int, places: int) -> None:
    def expect(name: str, column: int, least: int, size: int) -> None:
        _expect(operation, f"states.{name}", getattr(states, name)[:, column], least, size)

    rows = len(states.rows)
    for column, size in enumerate((slots, len(states.replayed) + 1, len(states.replayed) + 1, rows + 1, rows + 1)):
        expect("sequences", column, -1 if column == 0 else 0, size)
    expect("rows", 0, -1, len(states.sequences))
    expect("rows", 1, -1, rows)
    expect("rows", 2, -1, slots)
    expect("rows", 3, -1, places)
    replayed = states.replayed[: int(states.sequences[:, 2].max())]  # of a recorded pass the others are not used
    _expect(operation, "states.replayed", replayed[:, 0], 0, places)
    _expect(operation, "states.replayed", replayed[:, 1], -1, slots)


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


# What offsets have to stay below, by operation and argument.
_SIZES: Mapping[str, Mapping[str, Callable[[Arguments], int]]] = {
    "embed": {"tokens": lambda of: len(of["weight"])},
    "embed_packed": {"tokens": lambda of: int(of["weight"].outputs)},
    "add_embedding": {"index": lambda of: len(of["weight"])},
    "rotary_store": {"positions": lambda of: len(of["cos_sin"]), "slots": lambda of: _slots(of["key_cache"])},
    "latent_store": {"positions": lambda of: len(of["cos_sin"]), "slots": lambda of: _slots(of["cache"])},
    "attention": {},  # these have checks of their own
    "causal_conv": {},
    "gated_delta": {},
    "state_space": {},
    "expert_linear": {"experts": lambda of: len(of["weights"])},
    "excess": {"ids": lambda of: int(of["target"].shape[1])},
    "copy_slots": dict.fromkeys(("src_slots", "dst_slots"), lambda of: _slots(of["key_cache"])),
}
