"""A device that is the CPU under another name, which finds mistakes about where tensors lie.

Tensors "on the device" are of a subclass. Operations that mix both kinds raise, as do kernels that are given one of
the host's; what crosses is copied, and counted. So an engine that runs here leaves nothing where a GPU's kernels
could not read it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from traceback import extract_stack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from parlay.kernels.base import Kernels
from parlay.kernels.cpu import NativeKernels
from parlay.kernels.linear import LinearWeight
from parlay.kernels.sampling import SamplingKernels
from parlay.weights.weight import Weight

_DOWN = {"tolist", "item", "__int__", "__float__", "__bool__", "__index__", "cpu", "__array__"}
_MIXES = {"copy_", "__setitem__", "__getitem__", "__get__", "set_"}  # a CPU's tensor may be an index, or copied


class Crossings:
    """How often tensors crossed, and whether a pass is being recorded, in which none may."""

    def __init__(self) -> None:
        self.up = self.down = 0
        self.recording = False

    def count(self, *, up: bool) -> None:
        if self.recording:
            raise RuntimeError(f"a tensor crosses while a pass is recorded, {_caller()}")
        self.up, self.down = self.up + up, self.down + (not up)


CROSSINGS = Crossings()
LONGEST: list[int] = []  # lengths of sequences that kernels were chosen for


class OnDevice(Tensor):
    """A tensor that lies on the device."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "numpy":
            raise TypeError("a device's tensor has no array; copy it to the host first")
        if name in _DOWN:
            CROSSINGS.count(up=False)
            with torch._C.DisableTorchFunctionSubclass():
                plain = args[0].as_subclass(Tensor)
                return plain.clone() if name == "cpu" else func(plain, *args[1:], **kwargs)
        found = [*_tensors((args, kwargs))]
        host = [one for one in found if not isinstance(one, OnDevice) and one.dim()]
        if host and name not in _MIXES:
            raise RuntimeError(f"{name}: tensors of the host and of the device, {_caller()}")
        if host and not isinstance(args[0], OnDevice):
            raise RuntimeError(f"{name}: a tensor of the device into one of the host, without saying so")
        if host:
            CROSSINGS.count(up=True)
        return super().__torch_function__(func, types, args, kwargs)


class _Here(TorchFunctionMode):
    """New tensors lie on the device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func in _device_constructors() and kwargs.get("device") is None:
            if func in (torch.tensor, torch.as_tensor) and not isinstance(made, OnDevice):
                return place(made)
            return made.as_subclass(OnDevice)
        return made


def place(tensor: Tensor) -> Tensor:
    if isinstance(tensor, OnDevice):
        return tensor
    CROSSINGS.count(up=True)
    return tensor.clone().as_subclass(OnDevice)


class TaggedKernels(NativeKernels):
    """The native kernels, or others of this machine's memory, which take tensors of the device alone."""

    def __init__(self, others: Kernels | None = None) -> None:
        super().__init__()
        self._host, self._others = NativeKernels(), others
        self.name = "tagged"
        for name in (*vars(Kernels), *vars(SamplingKernels)):
            if not name.startswith("_") and name not in _OTHERS:
                setattr(self, name, self._tagged(name))

    @property
    def host(self) -> Kernels:  # type: ignore[override]
        return self._host

    def device_context(self) -> AbstractContextManager[object]:
        return _Here()

    def to_device(self, tensor: Tensor) -> Tensor:
        return place(tensor)

    def is_on_device(self, tensor: Tensor) -> bool:
        return isinstance(tensor, OnDevice)

    def record(self, work: Callable[[], object]) -> Callable[[], None]:
        CROSSINGS.recording = True
        try:
            if self._others is None:
                return super().record(work)
            work()
        finally:
            CROSSINGS.recording = False
        return partial(self._replay, work)

    def _replay(self, work: Callable[[], object]) -> None:
        with self.device_context():
            work()

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:
        weight = Weight.of(weight)
        with torch._C.DisableTorchFunctionSubclass():
            parts = tuple(type(part)(part.kind, part.data.as_subclass(Tensor)) for part in weight.parts)
        return super().pack_linear(Weight(parts)) if self._others is None else self._others.pack_linear(Weight(parts))

    def _tagged(self, name: str) -> Callable[..., None]:
        operation = getattr(self._others or self._host, name)

        def run(*args: Any, **named: Any) -> None:
            for one in _tensors((args, named)):
                if not isinstance(one, OnDevice):
                    raise RuntimeError(f"{name}: a tensor of the host, {_caller()}")  # noqa: TRY004
            operation(*map(_plain, args), **{key: _plain(one) for key, one in named.items()})

        return run


_OTHERS = {
    *("name", "row_thresholds", "prefetch", "host", "device_context", "to_device", "is_on_device"),
    *("fallback", "set_threads", "record"),
    "staging",
    *("pack_linear", "pack_head"),
}


def _caller() -> str:
    """Return the line of the engine that is at fault: errors of proposers are logged without their traceback."""
    frames = [frame for frame in extract_stack() if "/src/parlay/" in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-4:-1])


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, LinearWeight):  # which only kernels look into
        return
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])
    elif is_dataclass(value):
        yield from _tensors([getattr(value, field.name) for field in fields(value)])


def _plain(value: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(value, Tensor):
            return value.as_subclass(Tensor)
        if is_dataclass(value) and not isinstance(value, LinearWeight | type):
            return type(value)(*(_plain(getattr(value, field.name)) for field in fields(value)))
        return value
