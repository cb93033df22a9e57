"""The promise on lesser machines: tests with instruction sets switched off, those of oneDNN and our own.

Instruction sets are chosen once in a process, so each run is one of its own.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

try:
    from parlay.kernels import _native

    ISAS = _native.isas()
except ImportError:
    ISAS = []

TESTS = Path(__file__).parents[1]
NATIVE = [
    {"ONEDNN_MAX_CPU_ISA": onednn} | ({"PARLAY_ISA": ours} if ours in ISAS else {})
    for onednn, ours in [("AVX512_CORE", "avx512"), ("AVX512_CORE", "baseline"), ("AVX2", "avx2")]
]
# The slow twins, where oneDNN keeps one order of bfloat16 and where it does not.
TWINS = [{"PARLAY_KERNELS": "reference", "ONEDNN_MAX_CPU_ISA": isa} for isa in ("AVX512_CORE", "AVX2")]
# Tests that set these variables themselves, ask for results of exactly this machine's kernels, or run by hand only.
LEFT_OUT = "test_instruction_sets.py", "test_select.py", "test_examples.py", "test_house.py", "test_server_soak.py"
OTHERS = [
    path.relative_to(TESTS)
    for path in sorted(TESTS.rglob("test_*.py"))
    if path.name not in LEFT_OUT and path.parent.name != "clients"
]


def with_soak(environments: list[dict[str, str]], keep: int) -> list[Any]:
    """Return parameters of which only one runs outside of `make soak`."""
    kept = environments[keep]
    return [pytest.param(e, marks=() if e is kept else pytest.mark.soak) for e in environments]


def run_tests(environment: dict[str, str], *arguments: str | Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=TESTS.parent,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:]
    return ran.stdout


# A start of pytest takes longer than what it runs here: the suite tries one environment of each, `make soak` all.
some_native = pytest.mark.parametrize("environment", with_soak(NATIVE, keep=-1), ids=str)
some_twins = pytest.mark.parametrize("environment", with_soak(TWINS, keep=0), ids=str)


@some_native
def test_a_slice(environment: dict[str, str]) -> None:
    chosen = "test_the_same_tokens and out-of-blocks and (ngram or draft_model)"
    assert "2 passed" in run_tests(environment, "-k", chosen, TESTS / "conformance" / "test_same_tokens.py")


@some_twins
def test_the_twins(environment: dict[str, str]) -> None:
    """Under AVX512_CORE they have to be careful with bfloat16; `test_numerics_id.py` has requests for them."""
    rows = "(test_linear or test_multiplying) and reference"
    assert "5 passed" in run_tests(environment, "-k", rows, TESTS / "kernels" / "test_row_invariance.py")


@pytest.mark.soak
@pytest.mark.parametrize("tests", OTHERS, ids=str)
@pytest.mark.parametrize("environment", NATIVE, ids=str)
def test_everything(environment: dict[str, str], tests: Path) -> None:
    assert " passed" in run_tests(environment, TESTS / tests)
