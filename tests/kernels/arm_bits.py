"""What the native kernels make of the self-check's numbers: for comparing instruction sets across machines."""

import parlay  # noqa: F401  before torch, as in conftest

# isort: split
import json
import sys

import torch

from parlay.kernels.base import Kernels
from parlay.numerics.selfcheck import _OPERATIONS, Case, compare
from parlay.weights.kinds import COMPUTED, HALF

_SHAPES = (
    ("linear", (640, 64)),
    ("logits", (1536, 64)),
    ("rms_norm", (576,)),
    ("act_mul", (576,)),
    ("attention", (8, 2, 64)),
)
_CASES = [
    *(Case(name, sizes, dtype) for dtype in (torch.float32, torch.bfloat16) for name, sizes in _SHAPES),
    *(Case("linear", (768, 64), torch.bfloat16, kind.name) for kind in (*COMPUTED, HALF)),
]


def bits_of(kernels: Kernels) -> dict[str, int]:
    """Return a checksum for each operation, and each kind of weights."""
    made = {case: _OPERATIONS[case.operation](kernels, case) for case in _CASES}
    found = compare(kernels, made, threads=1, counts=lambda case: ())  # rows alone tell
    return {str(case): finding.bits for case, finding in found.items()}


if __name__ == "__main__":
    import arm_native  # noqa: F401  before what it replaces

    from parlay.kernels.cpu import NativeKernels

    print(json.dumps({isa: bits_of(NativeKernels(isa)) for isa in sys.argv[1:]}))
