"""Files of `parlay bench methods` as Markdown: each case, and all repetitions of a batch and temperature together.

python -m benchmarks.ratios docs/figures/chosen-lengths-smollm2-*.json.gz --plot ratios.png
"""

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import start
from parlay.bench.plots import NOT_SLOWER, check_target, draw_ratios
from parlay.bench.repetitions import estimate

Row = dict[str, Any]
NAMES = {"mt_bench": "MT-bench", "random": "random ids"}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw all cases as a map too")


def _run(options: argparse.Namespace) -> int:
    if options.plot is not None:
        check_target(options.plot)
    rows: list[Row] = [row for file in options.files for row in read(file)["rows"]]
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "plain"))
    cases: dict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        cases[row["workload"], row["batch"], row["temperature"]][row["method"]] = row
    print_cases(cases, methods)
    print_together(cases, methods)
    if options.plot is not None:
        draw_ratios(options.plot, options.plot.stem, rows)
    return 0


def read(file: Path) -> Any:
    """Return what a file of JSON holds, `.json` or `.json.gz`."""
    data = file.read_bytes()
    return json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)


def print_cases(cases: dict[tuple[Any, ...], dict[str, Row]], methods: Sequence[str]) -> None:
    """Print a row for each case, and which of them are slower than plain decoding."""
    print(f"\n| workload | batch | temperature | {' | '.join(methods)} |\n|---|{'---:|' * (2 + len(methods))}")
    slower = []
    for (workload, batch, temperature), own in sorted(cases.items(), key=lambda item: _order(cases, item[0])):
        found = [own.get(method) for method in methods]
        cells = " | ".join(_cell(row["speed_up"], row["interval"]) if row else "" for row in found)
        name = NAMES.get(workload, workload)
        print(f"| {name} | {batch} | {temperature:g} | {cells} |")
        slower += [
            f"{name}, batch {batch}, {temperature:g}: {row['method']} {_cell(row['speed_up'], row['interval'])}"
            for row in found
            if row and row["speed_up"] < NOT_SLOWER
        ]
    counts = [len(row["seconds"]) for own in cases.values() for row in own.values()]
    print(f"\n{len(slower)} of {sum(map(len, cases.values())) - len(cases)} cells are below {NOT_SLOWER}; ", end="")
    print(f"{min(counts)} to {max(counts)} repetitions a cell")
    print(*slower, sep="\n")


def print_together(cases: dict[tuple[Any, ...], dict[str, Row]], methods: Sequence[str]) -> None:
    """Print the medians of all repetitions of a batch size and temperature."""
    ratios: dict[tuple[int, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (_, batch, temperature), own in cases.items():
        for method in methods:
            if method in own:
                pairs = zip(own["plain"]["seconds"], own[method]["seconds"], strict=True)
                ratios[batch, temperature][method] += [plain / seconds for plain, seconds in pairs]
    print(
        f"\n| batch | temperature | repetitions | {' | '.join(methods)} |\n|---:|---:|{'---:|' * (1 + len(methods))}"
    )
    for (batch, temperature), pooled in sorted(ratios.items()):
        found = [estimate(pooled[method]) if pooled[method] else None for method in methods]
        cells = " | ".join(_cell(one.median, (one.low, one.high)) if one else "" for one in found)
        print(f"| {batch} | {temperature:g} | {max(map(len, pooled.values()))} | {cells} |")


def _order(cases: dict[tuple[Any, ...], Any], case: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what sorts cases: workloads as they come in the files, then batch and temperature."""
    workloads = list(dict.fromkeys(workload for workload, _, _ in cases))
    return workloads.index(case[0]), *case[1:]


def _cell(ratio: float, interval: Sequence[float] | None) -> str:
    return f"{ratio:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else f"{ratio:.2f}"


main = partial(start, "ratios", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
