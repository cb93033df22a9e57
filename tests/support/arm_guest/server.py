"""Runs the native module in a Python without torch, for a process that sends calls: see `arm_native`.

A call is the name of a function, its arguments, and the memory that tensors among these lie in; the answer is what
was returned or raised, and the memory that changed. Errors have a builtin type.
"""

import ctypes
import pickle
import sys
from types import SimpleNamespace

import _native
import torch


class Tensor:
    """As much of a tensor as the native module looks at."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...], contiguous: bool) -> None:
        self.address, self.dtype, self.shape, self.contiguous = address, dtype, shape, contiguous

    def data_ptr(self) -> int:
        return self.address

    def is_contiguous(self) -> bool:
        return self.contiguous


def decoded(value: object, memory: list[ctypes.Array[ctypes.c_char]]) -> object:
    """Undo `arm_native.encoded`."""
    if not isinstance(value, tuple):
        return value
    kind, *content = value
    if kind == "tensor":
        block, offset, dtype, shape, contiguous = content
        address = 0 if block is None else ctypes.addressof(memory[block]) + offset
        return Tensor(address, getattr(torch, dtype, dtype), shape, contiguous)
    if kind == "object":
        return SimpleNamespace(**{name: decoded(part, memory) for name, part in content[0].items()})
    return [decoded(part, memory) for part in content[0]]


def aligned(content: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return a copy that begins where a cache line does, as torch's memory does."""
    raw = bytearray(len(content) + 128)
    shift = -ctypes.addressof(ctypes.c_char.from_buffer(raw)) % 64
    block = (ctypes.c_char * len(content)).from_buffer(raw, shift)
    block.raw = content
    return block


def answer(name: str, arguments: list[object], named: dict[str, object], contents: list[bytes]) -> object:
    memory = [aligned(content) for content in contents]
    function: object = _native
    for part in name.split("."):
        function = getattr(function, part)
    try:
        given = {key: decoded(value, memory) for key, value in named.items()}
        returned = function(*(decoded(value, memory) for value in arguments), **given)
    except Exception as error:
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return "raised", next(kinds), str(error), {}
    changed = {i: block.raw for i, block in enumerate(memory) if block.raw != contents[i]}
    return "returned", returned, None, changed


calls, answers = sys.stdin.buffer, sys.stdout.buffer
while True:
    try:
        call = pickle.load(calls)
    except EOFError:
        break
    pickle.dump(answer(*call), answers)
    answers.flush()
