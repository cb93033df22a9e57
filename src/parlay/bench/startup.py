"""From the start of the process to the first token, as a user of the command line waits for it."""

import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from parlay.errors import ParlayError
from parlay.llm import LLM


def measure(model: str, repeats: int, tick: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds between starting `parlay generate` and its first byte of output.

    Args:
        model: by name, directory or file.
        repeats: starts that count.
        tick: called with a label of each.

    Raises:
        ParlayError: it does not start.
    """
    command = [
        sys.executable,
        "-m",
        "parlay.cli.main",
        "generate",
        "def main():",
        "--raw",
        "--model",
        model,
        "--max-tokens",
        "8",
        "--temperature",
        "0",
    ]
    seconds = []
    for i in range(repeats + 1):
        tick(f"start {i} of {repeats}")
        began = perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            elapsed = perf_counter() - began
            process.stdout.read()
        if not first or process.returncode:
            raise ParlayError(f"{' '.join(command)} failed with status {process.returncode}; run it to see why")
        if i:  # the first start fills the page cache
            seconds.append(elapsed)
    # The starts were other processes; one more engine under the same environment has their numerics.
    numerics = LLM(model, speculative_config=None, use_tqdm_on_load=False).numerics_id
    return {"model": model, "seconds_to_first_token": median(seconds), "repeats": repeats, "numerics": numerics}
