"""`parlay list`: the models on this machine, and the short names of others."""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from parlay.cli.pull import add_hub_flags
from parlay.cli.report import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlay.checkpoints.inventory import LocalCheckpoint


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "list",
        help="the models on this machine",
        description="List the models on this machine: those that come with parlay, those in the hub's cache that "
        "parlay can read, and those from wheels. Draft heads and draft models are listed apart.",
    )
    parser.add_argument("--names", action="store_true", help="list the short names and what they stand for instead")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    add_hub_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look up, then print."""
    from parlay.checkpoints.hub import Hub
    from parlay.checkpoints.inventory import take_inventory

    if options.names:
        return _names(options.json)
    found = take_inventory(Hub(cache_dir=options.download_dir))
    if options.json:
        print(json.dumps({"models": [as_json(one) for one in found.checkpoints], "unreadable": found.unreadable}))
        return 0
    models = [one for one in found.checkpoints if one.role == "model"]
    _table("model", models)
    _table("draft head or model", [one for one in found.checkpoints if one.role != "model"])
    if found.unreadable:
        print(f"{len(found.unreadable)} more cannot be read; --json says why", file=sys.stderr)
    return 0


def as_json(one: "LocalCheckpoint") -> dict[str, Any]:
    """Return a checkpoint as JSON."""
    values = asdict(one)
    changed = datetime.fromtimestamp(one.changed).astimezone().isoformat(timespec="seconds")
    return {**values, "path": str(one.path), "files": [str(file) for file in one.files], "changed": changed}


def _names(as_line: bool) -> int:
    from parlay.checkpoints.short_names import short_names

    names = short_names()
    if as_line:
        print(json.dumps({name: named.model for name, named in names.items()}))
        return 0
    print(*aligned((name, named.model) for name, named in names.items()), sep="\n")
    return 0


def _table(title: str, found: "Sequence[LocalCheckpoint]") -> None:
    """Print rows of text, which a pipe gets whole."""
    from parlay.checkpoints.download import size_text

    if not found:
        return
    rows = [(title, "stored as", "size", "from", "changed")]
    for one in found:
        # Each revision of a repository is listed; the name alone means the main branch.
        several = one.commit is not None and sum(other.name == one.name for other in found) > 1
        name = f"{one.name} at {str(one.commit)[:7]}" if several else one.name
        day = datetime.fromtimestamp(one.changed).astimezone().strftime("%Y-%m-%d %H:%M")
        rows.append((name, one.kind, size_text(one.size), one.place, day))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, kind, size, *rest in rows:
        cells = [name.ljust(widths[0]), kind.ljust(widths[1]), size.rjust(widths[2])]
        cells += [cell.ljust(width) for cell, width in zip(rest, widths[3:], strict=True)]
        print("  ".join(cells).rstrip())
    print()
