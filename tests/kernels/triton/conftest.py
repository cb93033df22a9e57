"""The Triton kernels on a GPU where there is one, else in Triton's interpreter, which must be asked for at import."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from parlay.kernels.reference import ReferenceKernels


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def reference() -> ReferenceKernels:
    return ReferenceKernels()
