"""From the start of the process to the first token, as a user of the command line waits for it."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.common import start
from parlay.cli.flags import add_model
from parlay.cli.report import count, progress, report
from parlay.errors import ParlayError


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "tiny-code")
    parser.add_argument("--repetitions", type=count, default=5, help="starts that count (default: 5)")


def _run(options: argparse.Namespace) -> int:
    with progress() as tick:
        row = measure(options.model, options.repetitions, tick)
    columns = {"seconds_to_first_token": ("seconds to first token", "{:.2f}"), "repetitions": ("repetitions", "{:d}")}
    report(options, [row], columns)
    return 0


def measure(model: str, repetitions: int, tick: Callable[[str], None]) -> dict[str, Any]:
    """Return the median seconds between starting `parlay generate` and its first byte of output.

    Bytecode is kept between starts, as an installed package has it, whatever the shell says.

    Raises:
        ParlayError: it does not start.
    """
    command = [sys.executable, "-m", "parlay.cli.main", "generate", "def main():", "--raw", "--model", model]
    command += ["--max-tokens", "8", "--temperature", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds = []
    for i in range(repetitions + 1):
        tick(f"start {i} of {repetitions}")
        began = perf_counter()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            elapsed = perf_counter() - began
            process.stdout.read()
        if not first or process.returncode:
            raise ParlayError(f"{' '.join(command)} failed with status {process.returncode}; run it to see why")
        if i:  # the first start fills the page cache
            seconds.append(elapsed)
    return {"model": model, "seconds_to_first_token": median(seconds), "repetitions": repetitions}


main = partial(start, "startup", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
