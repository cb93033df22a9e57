"""The native module for ARM, run under qemu-user, in place of this machine's.

As a plugin of pytest (`-p arm_native`) it takes the place of `parlay.kernels._native` before anything imports that:
all operations of the contract, packing and quantising are then done by ARM's kernels, whatever the test. Tensors'
memory is sent there and back for every call. Tries, exchanges and the like stay this machine's.

PARLAY_ARM is the folder that `scripts/arm.sh` built; PARLAY_ARM_CPU a processor that qemu knows, by default one with
all extensions.
"""

import builtins
import ctypes
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import parlay.kernels

# isort: split
import torch

from parlay.kernels import _native as own

_GUEST = Path(__file__).parent / "arm_guest"
_REMOTE = (
    *("packed_bytes", "pack", "quantise", "philox", "probe_read", "probe_multiply", "set_prefetching"),
    *("isa", "isas", "set_isa", "threads", "set_threads"),
)


class Remote:
    """Calls functions of the module for ARM."""

    def __init__(self, folder: Path, cpu: str) -> None:
        """Start the other side.

        Args:
            folder: that `scripts/arm.sh` built.
            cpu: a processor that qemu knows.
        """
        root = folder / "root"
        command = ["qemu-aarch64", "-cpu", cpu, "-L", root, root / "usr" / "bin" / "python3", _GUEST / "server.py"]
        self._guest = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "module"), str(_GUEST)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lock = threading.Lock()
        self.tape: Tape | None = None

    def call(self, name: str, *arguments: object, **named: object) -> object:
        if self.tape is not None and name.startswith("Operations."):
            self.tape.calls.append(partial(self._call, name, arguments, named))
        return self._call(name, arguments, named)

    def record(self, tape: "Tape", work: Callable[[], object]) -> None:
        """Note in a tape what is called during some work."""
        self.tape = tape
        try:
            work()
        finally:
            self.tape = None

    def close(self) -> None:
        self._guest.communicate()

    def _call(self, name: str, arguments: tuple[object, ...], named: dict[str, object]) -> object:
        blocks: dict[int, tuple[int, torch.UntypedStorage]] = {}
        call = (
            name,
            [encoded(value, blocks) for value in arguments],
            {key: encoded(value, blocks) for key, value in named.items()},
            [ctypes.string_at(at, storage.nbytes()) for at, (_, storage) in blocks.items()],
        )
        with self._lock:
            assert self._guest.stdin is not None
            assert self._guest.stdout is not None
            pickle.dump(call, self._guest.stdin)
            self._guest.stdin.flush()
            how, returned, message, changed = pickle.load(self._guest.stdout)
        if how == "raised":
            raise getattr(builtins, returned)(message)
        addresses = list(blocks)
        for block, content in changed.items():
            ctypes.memmove(addresses[block], content, len(content))
        return returned


def encoded(value: object, blocks: dict[int, tuple[int, torch.UntypedStorage]]) -> object:
    """Return something of builtin types; notes in `blocks` what memory tensors need, by its address."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        block = None
        if storage.nbytes():
            block, _ = blocks.setdefault(storage.data_ptr(), (len(blocks), storage))
        offset = value.storage_offset() * value.element_size()
        return (
            "tensor",
            block,
            offset,
            str(value.dtype).removeprefix("torch."),
            tuple(value.shape),
            value.is_contiguous(),
        )
    if isinstance(value, (int, float, str, bytes, type(None))):
        return value
    names = getattr(type(value), "_fields", None) or getattr(type(value), "__dataclass_fields__", None)
    if names is not None:
        return "object", {name: encoded(getattr(value, name), blocks) for name in names}
    if isinstance(value, (list, tuple)):
        return "list", [encoded(part, blocks) for part in value]
    raise TypeError(f"{type(value).__name__} cannot be sent to the kernels for ARM")


class Tape:
    """A recording: calls that are sent again, with whatever is in memory then."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def run(self) -> None:
        for call in self.calls:
            call()

    def __len__(self) -> int:
        return len(self.calls)


def module(folder: Path, cpu: str) -> ModuleType:
    """Return what takes the place of `parlay.kernels._native`."""
    remote = Remote(folder, cpu)
    stand_in = ModuleType(own.__name__)
    names = [name for name in vars(own.Operations) if not name.startswith("_")]
    operations = {name: staticmethod(partial(remote.call, f"Operations.{name}")) for name in names}
    contents: dict[str, Any] = {
        **{name: value for name, value in vars(own).items() if not name.startswith("__")},
        **{name: partial(remote.call, name) for name in _REMOTE},
        "Operations": type("Operations", (), operations),
        "Tape": Tape,
        "record": remote.record,
        "recording": lambda: remote.tape is not None,
    }
    vars(stand_in).update(contents)
    return stand_in


if "PARLAY_ARM" in os.environ:
    _stand_in = module(Path(os.environ["PARLAY_ARM"]), os.environ.get("PARLAY_ARM_CPU", "max"))
    sys.modules[own.__name__] = _stand_in
    parlay.kernels._native = _stand_in  # type: ignore[assignment]
