"""All turns of a file of `parlay bench methods` together: medians of ratios to plain decoding, with intervals.

python scripts/pool_turns.py docs/figures/chosen-lengths-tiny-code-avx2.json
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from parlay.bench.paired import estimate


def main(path: str) -> None:
    rows = json.loads(Path(path).read_text())["rows"]
    plain = {_case(row): row["seconds"] for row in rows if row["method"] == "plain"}
    ratios: dict[tuple[int, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["method"] != "plain":
            pairs = zip(plain[_case(row)], row["seconds"], strict=True)
            ratios[row["batch"], row["temperature"]][row["method"]] += [ours / theirs for ours, theirs in pairs]
    for (batch, temperature), methods in sorted(ratios.items()):
        found = {name: estimate(own) for name, own in methods.items()}
        cells = " | ".join(f"{one.median:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in found.values())
        print(f"| {batch} | {temperature:g} | {len(next(iter(methods.values())))} | {cells} |")


def _case(row: dict[str, object]) -> tuple[object, ...]:
    return row["workload"], row["batch"], row["temperature"]


if __name__ == "__main__":
    main(sys.argv[1])
