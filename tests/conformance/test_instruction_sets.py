"""The promise on lesser machines: a slice of the conformance tests with instruction sets switched off.

Instruction sets are chosen once in a process, so each slice runs in one of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

try:
    from parlay.kernels import _native

    ISAS = _native.isas()
except ImportError:
    ISAS = []

ENVIRONMENTS = [
    {"ONEDNN_MAX_CPU_ISA": onednn} | ({"PARLAY_ISA": ours} if ours in ISAS else {})
    for onednn, ours in [("AVX512_CORE", "baseline"), ("AVX2", "avx2")]
]
TESTS = Path(__file__).with_name("test_same_tokens.py")
SLICE = "test_when_blocks_run_out and 0.7 and (ngram or draft_model)"


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_a_slice(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", SLICE, TESTS],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout
