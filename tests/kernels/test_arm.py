"""ARM's kernels, run under qemu-user: the kernels' own tests against them, and their bits beside this machine's.

`make arm` builds them where Debian's compiler for ARM and qemu are installed.
"""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("parlay.kernels._native")

import arm_native

from .arm_bits import bits_of
from .conftest import ISAS, KIND

ROOT = Path(__file__).parents[2]
BUILT = Path(os.environ.get("PARLAY_TEST_ARM", ROOT / "build" / "arm"))  # another is given by the wheel's test
HERE = Path(__file__).parent
# Tests of this machine's module (how it reads objects, its types, what is done without it), and of threads, whose
# waiting takes an emulator minutes.
LEFT_OUT = "test_arguments.py", "test_arm.py", "test_select.py", "test_stub.py", "test_threads.py"
if "PARLAY_ARM" in os.environ:
    pytest.skip("these tests run the others on ARM's kernels", allow_module_level=True)
if not (BUILT / ".built").exists() and "PARLAY_TEST_ARM" not in os.environ:
    pytest.skip("ARM's kernels are not built here; see `make arm`", allow_module_level=True)

VARIANTS = ["neonbf16", "neoni8mm", "neondot", "neon", "baseline"]  # best first


def under_arm(*command: str | Path, cpu: str = "max") -> str:
    """Run Python here with the native module of the other processor."""
    paths = os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PARLAY_ARM": str(BUILT), "PARLAY_ARM_CPU": cpu, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
    return ran.stdout


def run_tests(*arguments: str | Path) -> str:
    return under_arm("-m", "pytest", "-p", "arm_native", "-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize(("cpu", "least"), [("cortex-a53", "neon"), ("neoverse-n1", "neondot"), ("max", "neonbf16")])
def test_a_processor_gets_what_it_has(cpu: str, least: str) -> None:
    with closing(arm_native.Remote(BUILT, cpu)) as remote:
        assert remote.call("isas") == VARIANTS[VARIANTS.index(least) :]
        assert remote.call("isa") == least


@pytest.mark.skipif("avx2" not in ISAS, reason="fused operations are compared with AVX2's")
def test_the_bits_are_those_of_this_machine() -> None:
    """Of all operations, and all kinds of weights; but BFDOT rounds sums of bfloat16's products another way."""
    found = json.loads(under_arm("-m", "tests.kernels.arm_bits", *VARIANTS))
    own = {isa: bits_of(KIND(isa)) for isa in ("avx2", "baseline")}
    for isa in VARIANTS:
        expected = own["baseline" if isa == "baseline" else "avx2"]
        differ = {name for name, bits in found[isa].items() if bits != expected[name]}
        products = {name for name in expected if name.startswith(("linear", "logits", "attention"))}
        own_way = {name for name in products if name.endswith("bfloat16")}
        assert differ == (own_way if isa == "neonbf16" else set()), isa


def test_bfdot_is_what_the_manual_says() -> None:
    """Sums in its order and with its rounding, and those of float32 in the order of all others."""
    chosen = "test_the_order_in_which_products_are_summed and neonbf16"
    assert "10 passed" in run_tests("-k", chosen, HERE / "test_elementwise.py")


@pytest.mark.soak
@pytest.mark.parametrize(
    "tests", sorted(path for path in HERE.glob("test_*.py") if path.name not in LEFT_OUT), ids=str
)
def test_all_of_the_kernels(tests: Path) -> None:
    """Against twins and references, with every variant."""
    assert " passed" in run_tests(tests)
