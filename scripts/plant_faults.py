"""Plant faults, one after another, and see the suite catch each: `python scripts/plant_faults.py`.

Each fault is planted in a copy of the tree, against which the suite runs until its first failure. Faults in native
sources are compiled first, which needs pip to fetch the build tools. Run it after a change to what the suite runs.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

TREE = Path(__file__).resolve().parents[1]
# An editable installation leads every import to its own tree; this leads it to PYTHONPATH instead.
SITE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
"""


class Fault(NamedTuple):
    """One mistake: in `file` below the tree, `old` is written as `new`."""

    name: str
    file: str
    old: str
    new: str


FAULTS = [
    Fault(
        "a key dropped from the noise",
        "src/parlay/acceptance/coupled.py",
        "seeds = [span.seed for span in plain for _ in range(1 + len(span.draft))]",
        "seeds = [0 for span in plain for _ in range(1 + len(span.draft))]",
    ),
    Fault(
        "a stale recording",
        "src/parlay/runner/graphs.py",
        "    to.view.extra_offsets.copy_(batch.view.extra_offsets)\n",
        "",
    ),
    Fault(
        "an off-by-one in tree positions",
        "src/parlay/runner/batch.py",
        "np.asarray(depths(stretch.draft)) + end - 1",
        "np.asarray(depths(stretch.draft)) + end",
    ),
    Fault(
        "a block not freed",
        "src/parlay/kv/table.py",
        "        keep = -(-tokens // self._pool.block_size)\n",
        "        keep = min(len(self.blocks), tokens // self._pool.block_size + 1)\n",
    ),
    Fault("a prefix hash without tenant", "src/parlay/kv/table.py", "root_hash(self._salt)", 'root_hash("")'),
    Fault(
        "a filter with the wrong tie",
        "csrc/select.h",
        "ties &= ~(0x80000000u >> __builtin_clz(ties))",
        "ties &= ties - 1",
    ),
    Fault("a wrong tap", "src/parlay/models/decoder.py", "if depth in states:", "if depth - 1 in states:"),
    Fault(
        "blocks that a plan under way writes to are given away",
        "src/parlay/engine/scheduler.py",
        "if not self.is_under_way(request):\n            request.table.release()",
        "request.table.release()",
    ),
    Fault(
        "a stop string lost across drafts",
        "src/parlay/text/detokenizer.py",
        "tail.find(s, max(0, before + 1 - len(s) - begin))",
        "tail.find(s, before - begin)",
    ),
    Fault(
        "a leaked abort",
        "src/parlay/drafting/drafting.py",
        "        for host in request.drafting.hosts:\n            host.forget(request)",
        "        for host in []:\n            host.forget(request)",
    ),
    Fault(
        "a wrong block of K",
        "csrc/rows.h",
        "inputs > 1024 ? 1024 : 512",
        "inputs > 1536 ? 1024 : 512",
    ),
    Fault(
        "the last of an odd number of inputs left out of a tile",
        "csrc/tiles.h",
        "(rest + 1) / 2 * kTileStride",
        "rest / 2 * kTileStride",
    ),
    Fault(
        "the sum of half a chunk",
        "csrc/quantised.h",
        "to.sum = to.sums[0] + to.sums[1];",
        "to.sum = to.sums[0];",
    ),
    Fault(
        "a numerics id without the kinds of weights",
        "src/parlay/numerics/identify.py",
        '"+".join((str(dtype).removeprefix("torch."), *_quantised(config)))',
        'str(dtype).removeprefix("torch.")',
    ),
]


def plant(fault: Fault, tree: Path, copy: Path) -> None:
    """Write `tree` with the fault to `copy`."""
    for part in ("src", "csrc", "tests", "examples", "scripts", "docs", "deploy"):
        shutil.copytree(tree / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in tree.iterdir():
        if file.is_file():
            shutil.copy(file, copy)
    path = copy / fault.file
    text = path.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} no longer reads as {fault.name!r} expects"
    path.write_text(text.replace(fault.old, fault.new))
    if fault.file.startswith("csrc/"):
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(copy), str(copy)]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
        with ZipFile(next(copy.glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                if name.endswith(".so"):
                    wheel.extract(name, copy / "src")
    (copy / "sitecustomize.py").write_text(SITE)


def caught_by(copy: Path, arguments: list[str]) -> str | None:
    """Run the suite; return the first test that failed, or None."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert ran.returncode in (0, 1, 2), ran.stdout[-3000:] + ran.stderr[-3000:]
    return failed[0].split(" - ")[0] if failed else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=TREE, help="the tree to plant them in")
    parser.add_argument("--only", default="", help="part of the names of the faults to plant")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    missed = 0
    for fault in FAULTS:
        if options.only in fault.name:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "tree"
                copy.mkdir()
                plant(fault, options.tree, copy)
                test = caught_by(copy, options.pytest)
            missed += test is None
            print(f"{fault.name}: {test or 'NOT CAUGHT'} ({time.monotonic() - began:.0f} s)", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
