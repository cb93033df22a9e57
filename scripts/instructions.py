"""Counts instructions of the products' inner loops in compiled objects, for machines that are not here.

    python scripts/instructions.py build/arm/module/CMakeFiles/kernels_*.dir/csrc/variant.cpp.o

Prints a row for each kind of weights and number of rows: instructions of the loop, for each weight, and for each
product of a weight with a row. How long these take is another matter, and depends on the processor.
"""

import argparse
import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

_BODY = re.compile(r"^[0-9a-f]+ <(?P<name>.*)>:$")
_LINE = re.compile(r"^\s+(?P<at>[0-9a-f]+):\s+(?P<what>\S+)(?:.*?\s(?P<target>[0-9a-f]+) <)?")
_KERNEL = re.compile(r"(?P<kernel>multiply|multiply_blocks)<(?P<weights>\w+), (?P<rows>\d+)(?:, (?P<vecs>\d+))?>\(")
_NAMESPACE = "parlay::(anonymous namespace)::"
_NUMBERS = {"float": 1, "fp16": 1, "bf16": 2}  # inputs that a step takes, of sixteen outputs
_CHUNK = 32 * 32  # weights of a step in blocks


class Loop(NamedTuple):
    """An innermost loop of a kernel: a step of so many weights against so many rows."""

    kernel: str
    weights: str
    rows: int
    instructions: int
    products: int


def bodies(lines: Iterator[str]) -> Iterator[tuple[str, list[tuple[int, str, int | None]]]]:
    """Yield each function's name and its instructions: address, mnemonic, where it branches to."""
    name, body = "", []
    for line in lines:
        if start := _BODY.match(line):
            yield name, body
            name, body = start["name"], []
        elif found := _LINE.match(line):
            target = (
                int(found["target"], 16) if found["target"] and found["what"].startswith(("b", "cb", "tb")) else None
            )
            body.append((int(found["at"], 16), found["what"], target))
    yield name, body


def largest_loop(body: list[tuple[int, str, int | None]]) -> int:
    """Return how many instructions the largest loop has that contains no other."""
    index = {at: i for i, (at, _, _) in enumerate(body)}
    spans = [(index[to], i) for i, (_, _, to) in enumerate(body) if to in index and index[to] <= i]
    inner = [
        (first, last)
        for first, last in spans
        if not any(first <= begin and end <= last and (begin, end) != (first, last) for begin, end in spans)
    ]
    return max((last - first + 1 for first, last in inner), default=0)


def loops(path: str) -> list[Loop]:
    """Return what the kernels of one object come to."""
    command = ["aarch64-linux-gnu-objdump", "--disassemble", "--demangle", "--no-show-raw-insn", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for name, body in bodies(iter(text.splitlines())):
        if kernel := _KERNEL.search(name.replace(_NAMESPACE, "")):
            weights, rows = kernel["weights"], int(kernel["rows"])
            step = 16 * int(kernel["vecs"]) * _NUMBERS[weights] if kernel["kernel"] == "multiply" else _CHUNK
            found.append(Loop(kernel["kernel"], weights, rows, largest_loop(body), step))
    return sorted(found)


def main() -> None:
    """Print the counts of some objects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("objects", nargs="+")
    for path in parser.parse_args().objects:
        print(path)
        for loop in loops(path):
            weight = loop.instructions / loop.products
            counts = f"{loop.instructions:5}  {weight:.3f}  {weight / loop.rows:.3f}"
            print(f"  {loop.weights:8} {loop.rows:3} rows: {counts}")


if __name__ == "__main__":
    main()
