"""Make a small model big with the same function, to measure on: `python scripts/widen.py --output DIRECTORY`."""

import argparse
import sys
from dataclasses import MISSING, fields
from pathlib import Path

from widening.heads import widen_all
from widening.model import Shape

from parlay.cli.report import add_json_flag, count, progress, report
from parlay.errors import ParlayError

_COLUMNS = {
    "output": ("output", "{}"),
    "parameters": ("parameters", "{:,d}"),
    "gigabytes": ("GB", "{:.2f}"),
    "same_bits": ("same bits", "{}"),
}


def main(arguments: list[str] | None = None) -> int:
    """Write the model, and the heads that were named; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model", default="tiny-code", help="name or directory of the small model (default: tiny-code)")
    add("--output", type=Path, required=True, help="directory to write the wide one to")
    text = "a draft head of the small model to widen too, into OUTPUT/heads; may be repeated, and added to a model"
    add("--head", dest="heads", action="append", default=[], metavar="HEAD", help=text + " that is there already")
    add("--seed", type=int, default=0, help="of the random numbers that nothing reads (default: 0)")
    for one in fields(Shape):
        default = None if one.default is MISSING else one.default
        flag = "--" + one.name.replace("_", "-")
        add(flag, type=count, default=default, help=f"of the wide model (default: {default})")
    add_json_flag(parser)
    options = parser.parse_args(arguments)
    shape = Shape(**{one.name: getattr(options, one.name) for one in fields(Shape)})
    try:
        with progress() as tick:
            rows = widen_all(options.model, options.output, shape, options.seed, options.heads, tick)
    except ParlayError as error:
        print(f"widen: {error}", file=sys.stderr)
        return 2
    report(options, rows, _COLUMNS)
    for obstacle in (obstacle for row in rows for obstacle in row["obstacles"]):
        print(f"bits may differ: {obstacle}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
