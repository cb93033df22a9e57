"""What the benchmarks share: a command line with `--json` and `--threads`, and errors in one line."""

import argparse
import sys
from collections.abc import Callable, Sequence

from parlay import env
from parlay.cli.flags import Parser, normalise
from parlay.cli.report import add_json_flag
from parlay.errors import ParlayError


def start(
    module: str,
    description: str | None,
    add_flags: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse a benchmark's command line, run it, and return its exit status.

    Args:
        module: of the benchmark.
        description: for `--help`.
        add_flags: adds its flags to a parser.
        run: measures and prints.
        arguments: in place of those of the process.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m benchmarks.{module}", description=description, formatter_class=formatter)
    add_flags(parser)
    add_json_flag(parser)
    try:
        options = parser.parse_args(normalise(list(sys.argv[1:] if arguments is None else arguments)))
        if "threads" in options:
            env.adopt({"PARLAY_THREADS": str(options.threads)})
        return run(options)
    except ParlayError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
