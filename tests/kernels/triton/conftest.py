"""The Triton kernels on a GPU where there is one, else in Triton's interpreter, which must be asked for at import."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from triton.runtime import interpreter

from parlay.kernels.reference import ReferenceKernels


def quicken() -> None:
    """Spare Triton's interpreter what it does in vain, which is more than half of its time.

    It replaces the language's functions anew for each call of a function within a kernel, though they stay replaced
    until the kernel ends. And it looks for overflows of integers, but tells of them only in debugging.
    """
    builder, patch, launch = (
        interpreter.interpreter_builder,
        interpreter._patch_lang,
        interpreter.GridExecutor.__call__,
    )
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
    patched: set[int] = set()  # modules, by the identity of what they define, while a kernel runs

    def patch_once(function: Callable[..., Any]) -> Any:
        if id(function.__globals__) in patched:
            return None
        patched.add(id(function.__globals__))
        return patch(function)

    def launched(executor: Any, *arguments: Any, **options: Any) -> Any:
        patched.clear()
        return launch(executor, *arguments, **options)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launched


if not torch.cuda.is_available():
    quicken()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def reference() -> ReferenceKernels:
    return ReferenceKernels()
