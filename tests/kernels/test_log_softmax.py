"""Log-probabilities: the same bits in all implementations, and near the exact ones."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
from crossing import crossed
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels

from .helpers import EMULATED

INF, NAN = float("inf"), float("nan")


def rows(vocab: int, scale: float, seed: int) -> Tensor:
    return torch.randn((3, vocab), generator=torch.Generator().manual_seed(seed)) * scale


def of(kernels: Kernels, scores: Tensor) -> Tensor:
    out = torch.empty_like(scores)
    kernels.log_softmax(scores, out)
    return out


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 300, 49152])
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 40.0, 1e38])
def test_bits_are_the_twins(native: Kernels, vocab: int, scale: float) -> None:
    scores = rows(vocab, scale, seed=vocab)
    expected = of(ReferenceKernels(), scores)
    assert of(native, scores).numpy().tobytes() == expected.numpy().tobytes()
    alone = torch.cat([of(native, row[None]) for row in scores])
    assert torch.equal(alone, expected)
    native.log_softmax(scores, scores)
    assert torch.equal(scores, expected), "in place"


@crossed(vocab=[1, 17, 49152, 262144], scale=[0.1, 3.0, 40.0])
def test_near_the_exact_ones(kernels: Kernels, vocab: int, scale: float) -> None:
    scores = rows(vocab, scale, seed=1)
    exact = scores.numpy().astype(np.longdouble)
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    error = np.abs(of(kernels, scores).numpy() - exact)
    assert (error <= 4e-7 + 1e-7 * np.abs(exact)).all()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([NAN, 0.0, 0.0], [-INF, -np.log(2), -np.log(2)]),
        ([-INF, 5.0, -INF], [-INF, 0.0, -INF]),
        ([INF, 3.0, INF, NAN], [-np.log(2), -INF, -np.log(2), -INF]),
        ([-INF, -INF, NAN, -INF], [-np.log(4)] * 4),
        ([3e38, -3e38], [0.0, -INF]),
    ],
)
def test_what_is_no_number(kernels: Kernels, row: list[float], expected: list[float]) -> None:
    assert of(kernels, torch.tensor([row]))[0].tolist() == pytest.approx(expected)


REPORT = """
from parlay import LLM, SamplingParams
llm = LLM("tiny-code")
(one,) = llm.generate(["def area("], SamplingParams(max_tokens=4, temperature=0, logprobs=5, prompt_logprobs=1))
of = lambda entries: [(t, e.logprob.hex()) for entry in entries if entry for t, e in entry.items()]
print(llm.numerics_id, of(one.outputs[0].logprobs), of(one.prompt_logprobs))
"""


@pytest.mark.skipif(EMULATED, reason="the process that it starts has this machine's kernels")
def test_bits_do_not_depend_on_the_vector_width_that_torch_chooses() -> None:
    """Of `ATEN_CPU_CAPABILITY` the numerics id knows nothing; torch does not ask whether a processor has it."""
    env = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    other = subprocess.run([sys.executable, "-c", REPORT], env=env, capture_output=True, text=True, check=True)
    own = io.StringIO()
    with redirect_stdout(own):
        exec(REPORT, {})
    assert len(own.getvalue()) > 100
    assert other.stdout == own.getvalue()
