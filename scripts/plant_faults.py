"""Plant faults, one after another, and see the suite catch each: `python scripts/plant_faults.py`.

Each fault is planted in a copy of the tree, against which the tests nearest to it run until their first failure, and
where none of these fails, all others. Faults in native sources are compiled first, which needs pip to fetch the build
tools. Run it after a change to what the suite runs.
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
    """One mistake: in `file` below the tree, `old` is written as `new`; `near` are the tests that should see it."""

    name: str
    near: str
    file: str
    old: str
    new: str


FAULTS = [
    Fault(
        "a prompt that a head processes, however short the answer",
        "tests/drafting/test_device_drafts.py",
        "src/parlay/drafting/device_drafts.py",
        "return self._catching_up(request) * policy.requests <=",
        "return 0 * policy.requests <=",
    ),
    Fault(
        "drafts of a size that once was slow, which are never verified again",
        "tests/drafting/test_policy.py",
        "src/parlay/drafting/policy.py",
        "chosen = self._doubt(chances, rows, chosen)",
        "pass",
    ),
    Fault(
        "a step that was stopped, taken for what its number of rows costs",
        "tests/drafting/test_cost.py",
        "src/parlay/drafting/cost.py",
        "min(own / self.table[rows], MOST) * usual, 1",
        "own / self.table[rows] * usual, 1",
    ),
    Fault(
        "ranks that need Linux's way of sharing memory",
        "tests/test_system.py",
        "src/parlay/system.py",
        'if hasattr(os, "memfd_create"):',
        "if True:",
    ),
    Fault(
        "a draft's key in eight bits that is taken for the row's before it",
        "tests/kernels/test_cache_rows.py",
        "csrc/attention.h",
        "if (k >= kept_begin && k < kept) continue;",
        "if (k >= kept_begin && k <= kept) continue;",
    ),
    Fault(
        "on a GPU, numbers of a cache in eight bits that are read by the next block's scale",
        "tests/kernels/triton/test_triton_cache_rows.py",
        "src/parlay/kernels/triton/cache_rows.py",
        "+ (column // _NUMBERS * _BYTES)[None, :]",
        "+ ((column + 1) // _NUMBERS * _BYTES)[None, :]",
    ),
    Fault(
        "a request that is aborted while its prompt is encoded, and runs all the same",
        "tests/test_async_llm.py",
        "src/parlay/link/engine.py",
        "if key in self._aborted:",
        "if False:",
    ),
    Fault(
        "ranks whose keys and values are not in eight bits",
        "tests/engine/test_kv_cache_dtype.py",
        "src/parlay/engine/rank.py",
        "own.load_format, own.kv_cache_dtype)",
        "own.load_format)",
    ),
    Fault(
        "an id that does not say how keys and values are stored",
        "tests/engine/test_kv_cache_dtype.py",
        "src/parlay/numerics/identify.py",
        'cache = [] if config.kv_cache_dtype == "auto" else [f"kv-{config.kv_cache_dtype}"]',
        "cache: list[str] = []",
    ),
    Fault(
        "a prompt that takes all rows beside requests that decode",
        "tests/engine/test_scheduler.py",
        "src/parlay/engine/scheduler.py",
        "self._left_for_prompts = self._budget.rows(len(rows))",
        "self._left_for_prompts = self._left",
    ),
    Fault(
        "a bound of prompts that is never measured anew",
        "tests/engine/test_prefill_budget.py",
        "src/parlay/engine/prefill_budget.py",
        "if self._since >= _EVERY:",
        "if self._since < 0:",
    ),
    Fault(
        "a header that is remembered of a file that has changed",
        "tests/checkpoints/test_gguf.py",
        "src/parlay/checkpoints/gguf/header.py",
        "if _checksum(data, header.end) != header.checksum:",
        "if header.end > len(data):",
    ),
    Fault(
        "a key dropped from the noise",
        "tests/verification",
        "src/parlay/verification/coupled.py",
        "seeds += [span.seed] * own",
        "seeds += [0] * own",
    ),
    Fault(
        "a stale recording",
        "tests/runner",
        "src/parlay/runner/batch.py",
        "there.last, there.extra_offsets, *(",
        "there.last, view.extra_offsets, *(",
    ),
    Fault(
        "an off-by-one in tree positions",
        "tests/runner",
        "src/parlay/runner/batch.py",
        "[depth + end - 1 for depth in",
        "[depth + end for depth in",
    ),
    Fault(
        "a block not freed",
        "tests/kv",
        "src/parlay/kv/table.py",
        "        keep = -(-tokens // self._pool.block_size)\n",
        "        keep = min(len(self.blocks), tokens // self._pool.block_size + 1)\n",
    ),
    Fault(
        "a prefix hash without tenant", "tests/kv", "src/parlay/kv/table.py", "root_hash(self._salt)", 'root_hash("")'
    ),
    Fault(
        "a filter with the wrong tie",
        "tests/kernels",
        "csrc/select.h",
        "ties &= ~(0x80000000u >> __builtin_clz(ties))",
        "ties &= ties - 1",
    ),
    Fault(
        "a wrong tap",
        "tests/models tests/proposers",
        "src/parlay/models/decoder.py",
        "if depth in states:",
        "if depth - 1 in states:",
    ),
    Fault(
        "blocks that a plan under way writes to are given away",
        "tests/engine/test_scheduler.py tests/engine/test_plans.py",
        "src/parlay/engine/scheduler.py",
        "if not self.is_under_way(request):\n            request.table.release()",
        "request.table.release()",
    ),
    Fault(
        "a stop string lost across drafts",
        "tests/text/test_detokenizer.py",
        "src/parlay/text/detokenizer.py",
        "tail.find(s, max(0, before + 1 - len(s) - begin))",
        "tail.find(s, before - begin)",
    ),
    Fault(
        "a leaked abort",
        "tests/drafting",
        "src/parlay/drafting/drafting.py",
        "        for host in request.drafting.hosts:\n            host.forget(request)",
        "        for host in []:\n            host.forget(request)",
    ),
    Fault(
        "panels read side by side, of which the later begin a block of inputs with the first one's sums",
        "tests/kernels/test_row_invariance.py",
        "csrc/linear.h",
        "first ? sum[p][v] : total[p][v] + sum[p][v]",
        "first ? sum[p][v] : total[0][v] + sum[p][v]",
    ),
    Fault(
        "a wrong block of K",
        "tests/kernels",
        "csrc/rows.h",
        "inputs > 1024 ? 1024 : 512",
        "inputs > 1536 ? 1024 : 512",
    ),
    Fault(
        "the last of an odd number of inputs left out of a tile",
        "tests/kernels",
        "csrc/tiles.h",
        "(rest + 1) / 2 * kTileStride",
        "rest / 2 * kTileStride",
    ),
    Fault(
        "the sum of half a chunk",
        "tests/kernels",
        "csrc/quantised.h",
        "to.sum = to.sums[0] + to.sums[1];",
        "to.sum = to.sums[0];",
    ),
    Fault(
        "a numerics id without the kinds of weights",
        "tests/models/test_quantised_models.py",
        "src/parlay/numerics/identify.py",
        '"+".join((str(dtype).removeprefix("torch."), *_quantised(config)))',
        'str(dtype).removeprefix("torch.")',
    ),
    Fault(
        "a key that floods comes before all others",
        "tests/server/test_fair_queue.py",
        "src/parlay/server/fair_queue.py",
        "self._waiting[key] = calls  # behind all other keys",
        "self._waiting[key] = calls\n                self._waiting.move_to_end(key, last=False)",
    ),
    Fault(
        "trying may cost all of the time",
        "tests/drafting",
        "src/parlay/drafting/budget.py",
        "self.add(SHARE * seconds)",
        "self.add(seconds)",
    ),
    Fault(
        "a developer's message that its template drops",
        "tests/text/test_adapt.py",
        "src/parlay/text/adapt.py",
        '{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]',
        "m for m in messages]",
    ),
    Fault(
        "entries of another version",
        "tests/test_cache_file.py",
        "src/parlay/cache_file.py",
        'if raw and raw["version"] == self._version else',
        "if raw else",
    ),
    Fault(
        "an interrupted step without recovery",
        "tests/engine/test_interrupts.py",
        "src/parlay/engine/engine.py",
        "self._scheduler.recover(perf_counter(), processing=self._worker.reset())",
        "self._worker.reset()",
    ),
    Fault(
        "drafts from other tenants' answers",
        "tests/proposers/methods/suffix",
        "src/parlay/proposers/methods/suffix.py",
        "_Text(_Response(tenant), list(prompt))",
        '_Text(_Response(tenant and "all"), list(prompt))',
    ),
    Fault(
        "an unseeded request with the samples of a seeded one",
        "tests/engine",
        "src/parlay/sampling/seeds.py",
        "return mix(mix(engine_seed, _ARRIVALS), ordinal + 1)",
        "return mix(engine_seed, ordinal)",
    ),
    Fault(
        "a rank that computes other bits",
        "tests/engine/test_tensor_parallel.py",
        "src/parlay/engine/rank.py",
        "strict=False) if pair[0] != pair[1]]",
        "strict=False) if not pair]",
    ),
    Fault(
        "the first space of an answer",
        "tests/text",
        "src/parlay/text/detokenizer.py",
        "self._context, self._pending = self._tail(prompt), list[int]()",
        "self._context, self._pending = list[int](), list[int]()",
    ),
    Fault(
        "a zero point that is off by one",
        "tests/checkpoints/test_quantised_formats.py",
        "src/parlay/checkpoints/quantised/integers.py",
        "levels - spread(zeros)",
        "levels - spread(zeros) - 1",
    ),
    Fault(
        "preempting requests of the highest priority",
        "tests/engine/test_scheduler.py",
        "src/parlay/engine/scheduler.py",
        "worst = max(r.priority for r in self._running)",
        "worst = min(r.priority for r in self._running)",
    ),
    Fault(
        "a GPU's tile of keys that begins where a row's sight does",
        "tests/kernels/triton/test_triton_attention.py",
        "src/parlay/kernels/triton/attention.py",
        "tl.maximum(begin, start // tile * tile)",
        "tl.maximum(begin, start)",
    ),
    Fault(
        "a GPU's window that shows a key more",
        "tests/kernels/triton/test_triton_attention.py",
        "src/parlay/kernels/triton/attention.py",
        "tl.maximum(start, total - window)",
        "tl.maximum(start, total - window - 1)",
    ),
    Fault(
        "a GPU that draws the highest id of equals",
        "tests/kernels/triton/test_triton_sampling.py",
        "src/parlay/kernels/triton/sampling.py",
        "first = tl.min(tl.where(value == best, place, _NOWHERE), 0)",
        "first = tl.max(tl.where(value == best, place, -1), 0)",
    ),
    Fault(
        "a GPU's noise with its words in another order",
        "tests/kernels/triton/test_triton_sampling.py",
        "src/parlay/kernels/triton/sampling.py",
        "tl.interleave(tl.interleave(a, c), tl.interleave(b, d))",
        "tl.interleave(tl.interleave(a, b), tl.interleave(c, d))",
    ),
    Fault(
        "a GPU's top-p without the token that reaches it",
        "tests/kernels/triton/test_triton_sampling.py",
        "src/parlay/kernels/triton/filtering.py",
        "key >= tl.where(share < 1, tl.load(second + row * 2), 0)",
        "key > tl.where(share < 1, tl.load(second + row * 2), -1)",
    ),
    Fault(
        "a GPU that computes what is left in a padded table",
        "tests/kernels/triton/test_triton_recurrent.py",
        "src/parlay/kernels/triton/recurrent.py",
        "known & (tl.load(sequence + 3) <= row) & (row < tl.load(sequence + 4))",
        "known",
    ),
    Fault(
        "a GPU's norm of a sum that is not yet rounded",
        "tests/kernels/triton/test_triton_norms.py",
        "src/parlay/kernels/triton/norms.py",
        "value = rounded(value, dtype)\n        tl.store(x + first + column, value.to(dtype), mask=inside)",
        "tl.store(x + first + column, rounded(value, dtype).to(dtype), mask=inside)",
    ),
    Fault(
        "a GPU that turns by the opposite angle in half of the columns",
        "tests/kernels/triton/test_triton_rotary.py",
        "src/parlay/kernels/triton/rotary.py",
        "own * cos - other * sin)",
        "own * cos + other * sin)",
    ),
    Fault(
        "rows of states, off by one where a draft follows from the verdict of a GPU",
        "tests/engine/test_other_memory.py",
        "src/parlay/proposers/expanding_head.py",
        "numbers = work.sources, [start.row for start in starts],",
        "numbers = work.sources, [start.row + 1 for start in starts],",
    ),
    Fault(
        "nodes of a draft, placed as if none of the draft before had been accepted",
        "tests/proposers/test_device_verdict.py",
        "src/parlay/proposers/draft_slots.py",
        "places = self._positions[same, :rows] + self._pairs + shift.ahead",
        "places = self._positions[same, :rows] + self._pairs",
    ),
    Fault(
        "the target's states before a step's rows, not kept where its drafts follow from the verdict of a GPU",
        "tests/engine/test_launched_drafts.py",
        "src/parlay/engine/launched_drafts.py",
        "                if states:",
        "                if len(states) > 3:",
    ),
    Fault(
        "tokens that were drawn, compared with any node's where a GPU verifies",
        "tests/kernels/triton/test_triton_sampling.py",
        "src/parlay/kernels/triton/sampling.py",
        "tl.where((parent == row) & (token == choice), lane, ROWS)",
        "tl.where(token == choice, lane, ROWS)",
    ),
    Fault(
        "parameters of draws, left on the host where a GPU computes",
        "tests/engine/test_other_memory.py",
        "src/parlay/sampling/sampler.py",
        "= sent(kernels, draws.tensors)",
        "= draws.tensors",
    ),
    Fault(
        "a GPU that splits K where rows are few",
        "tests/kernels/triton/test_triton_linear.py",
        "src/parlay/kernels/triton/linear.py",
        "x, splits = _aligned(x), splits_of(width, weight.inputs, x.dtype)",
        "x, splits = _aligned(x), 1 if rows > 4 else 2",
    ),
    Fault(
        "rows of a pass before in the padding of a GPU's next one",
        "tests/engine/test_other_memory.py",
        "src/parlay/runner/graph_inputs.py",
        "                to.states.rows[rows:] = -1\n",
        "",
    ),
    Fault(
        "a gate of the wrong head",
        "tests/kernels/test_recurrent.py",
        "csrc/recurrent.h",
        "load_at(own, column, m) * splat(each[i])",
        "load_at(own, column, m) * splat(each[0])",
    ),
    Fault(
        "ranks share the gates of heads as if each column had one",
        "tests/models/test_ranks.py",
        "src/parlay/models/layer_parts.py",
        "[shared * (1 if by_head else value_dim)]",
        "[1 if by_head else shared * value_dim]",
    ),
    Fault(
        "values without their factor",
        "tests/models/test_families.py",
        "src/parlay/models/attention.py",
        "if self.output_scale != 1:",
        "if False:",
    ),
    Fault(
        "networks without the limits of their layer",
        "tests/models/test_families.py",
        "src/parlay/models/layer_parts.py",
        "return of.limits[index] if of.limits else 0.0",
        "return 0.0",
    ),
    Fault(
        "a layer for further tokens that reads what the one before it normed for its output layer",
        "tests/proposers/methods/mtp/test_several_layers.py",
        "src/parlay/models/families/step3p5.py",
        "late_norm=True,",
        "late_norm=False,",
    ),
    Fault(
        "values lie in the cache as far apart as keys",
        "tests/kernels/test_value_widths.py",
        "csrc/attention.h",
        "locate_rows(r, start, begin, end, row_size(a.value_dim), values)",
        "locate_rows(r, start, begin, end, row_size(a.head_dim), values)",
    ),
    Fault(
        "stacks in a multimodal checkpoint are looked up by the names of the text model alone",
        "tests/models/test_text_towers.py",
        "src/parlay/checkpoints/loader.py",
        "{name: self._opened(name) for name in stacks}",
        "{name: (self._files[self._where[name]], name) for name in stacks}",
    ),
    Fault(
        "norms in files for MLX are taken as those of the original files",
        "tests/checkpoints/test_mlx.py",
        "src/parlay/models/families/qwen3_5.py",
        "plus_one=not config.flag(FOR_MLX, False),",
        "plus_one=True,",
    ),
    Fault(
        "layers for MLX that the config names are read as the others",
        "tests/checkpoints/test_mlx.py",
        "src/parlay/checkpoints/quantised/mlx.py",
        "self._packing.apart.get(base, self._packing.schemes[0])",
        "self._packing.schemes[0]",
    ),
    Fault(
        "stacks of experts always have outputs first",
        "tests/models/test_text_towers.py",
        "src/parlay/checkpoints/pieces.py",
        "return self.turned or (bool(self.inputs) and shape[-1] != self.inputs)",
        "return self.turned",
    ),
    Fault(
        "queries of latent attention do not grow with their position",
        "tests/models/test_families.py",
        "src/parlay/models/latent.py",
        "kernels.multiply(queries.view(rows, -1), factors)",
        "pass",
    ),
    Fault(
        "the last norm of Muse-Glimmer is stored less one",
        "tests/models/test_text_towers.py",
        "src/parlay/models/decoder_layer.py",
        "plus_one = config.style.plus_one and (config.style.final_plus_one or not final)",
        "plus_one = config.style.plus_one",
    ),
    Fault(
        "files of Laguna have the head count of their first layer everywhere",
        "tests/checkpoints/test_gguf_export.py",
        "src/parlay/checkpoints/gguf/config.py",
        "{family.queries: queries} if queries and len({*queries}) > 1 else {}",
        "{}",
    ),
    Fault(
        "what Muse-Glimmer tells itself is its answer",
        "tests/server/test_atem.py",
        "src/parlay/server/openai/atem.py",
        "return _SELF.search(header) is not None",
        "return False",
    ),
    Fault(
        "line ends within strings of Python calls are an error",
        "tests/server/test_tool_calls.py",
        "src/parlay/server/openai/python_calls.py",
        'return found[0].replace("\\r", "\\\\r").replace("\\n", "\\\\n")',
        "return found[0]",
    ),
    Fault(
        "further MTP layers are trained on the keys of the first",
        "tests/train/test_mtp_training.py",
        "src/parlay/train/rollout.py",
        "if i < self.layers:",
        "if not i:",
    ),
    Fault(
        "suffixes of one tenant are drafted for another",
        "tests/conformance/test_proposer_contract.py",
        "src/parlay/proposers/methods/suffix.py",
        "return self._trees.get(tenant)",
        "return next(iter(self._trees.values()), None)",
    ),
    Fault(
        "activations of an MLP speculator are missing in recorded passes",
        "tests/conformance/test_proposer_contract.py",
        "src/parlay/proposers/methods/mlp_speculator/proposer.py",
        'kernels.activate(state, "gelu")',
        "state.copy_(torch.nn.functional.gelu(state))",
    ),
]


def plant(fault: Fault, tree: Path, copy: Path) -> None:
    """Write `tree` with the fault to `copy`."""
    for part in ("src", "csrc", "tests", "benchmarks", "examples", "scripts", "docs", "deploy"):
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


_MARKS = "not soak and not clients"  # what CI runs, but for what needs packages of clients


def caught_by(copy: Path, arguments: list[str]) -> str | None:
    """Run tests; return the first that failed, or None."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", _MARKS, *arguments],
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
                test = caught_by(copy, [*fault.near.split(), *options.pytest]) or caught_by(copy, options.pytest)
            missed += test is None
            print(f"{fault.name}: {test or 'NOT CAUGHT'} ({time.monotonic() - began:.0f} s)", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
