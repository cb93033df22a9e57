"""The kernels with tile instructions (AMX), which are emulated: their own tests, and every method's tokens.

`make amx` builds them; any processor that has AVX512 with bf16 runs them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "amx"
HERE = Path(__file__).parent
SUPPORT = ROOT / "tests" / "support"
# What asks the processor itself, and what runs other tests.
LEFT_OUT = "test_select.py", "test_arm.py", "test_amx.py"
if "PARLAY_AMX" in os.environ:
    pytest.skip("these tests run the others on emulated tiles", allow_module_level=True)
if not (BUILT / ".built").exists():
    pytest.skip("no kernels with emulated tiles are built here; see `make amx`", allow_module_level=True)


def with_tiles(*command: str | Path) -> str:
    """Run Python here with the native module whose tiles are emulated."""
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={
            **os.environ,
            "PARLAY_AMX": str(BUILT),
            "PARLAY_ISA": "amx",
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
    return ran.stdout


def passed(chosen: str, *paths: Path) -> int:
    """Run the tests that `chosen` picks and return how many passed; none may fail."""
    said = with_tiles("-m", "pytest", "-p", "amx_native", "-p", "no:cacheprovider", "-k", chosen, *paths)
    return int(said.split(" passed")[0].split()[-1])


def test_the_kernels_own_tests() -> None:
    files = [path for path in sorted(HERE.glob("test_*.py")) if path.name not in LEFT_OUT]
    assert passed("amx", *files) > 500


@pytest.mark.soak
def test_the_tables_of_same_tokens() -> None:
    """But for ranks and other processes, which have this machine's module."""
    alone = "not ranks and not stages and not test_instruction_sets"
    assert passed(alone, ROOT / "tests" / "conformance") > 400


@pytest.mark.soak
def test_every_method_keeps_the_tokens() -> None:
    said = with_tiles(SUPPORT / "amx_native.py", "verify", "tiny-code", "--dtype", "bfloat16")
    assert "the same-tokens guarantee holds here, bit for bit" in said
