"""`parlay rm`: remove a model from the hub's cache or from parlay's own."""

import argparse
import sys
from typing import Any

from parlay.cli.pull import add_hub_flags
from parlay.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "rm",
        help="remove a model that was downloaded",
        description="Remove a model from the hub's cache or from parlay's own, all its revisions. Models that come "
        "with parlay and files elsewhere are left alone.",
    )
    parser.add_argument("name", help="as `parlay list` shows it, or a name on the hub")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_hub_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show what would be removed, ask, remove."""
    from parlay.checkpoints.download import size_text
    from parlay.checkpoints.hub import Hub
    from parlay.checkpoints.remove import removable, remove

    hub = Hub(cache_dir=options.download_dir)
    found = removable(options.name, hub)
    if not options.yes:
        if not sys.stdin.isatty():
            raise ConfigError("there is no terminal to ask whether to remove it; give --yes")
        for one in found.checkpoints:
            print(f"{one.path}: {size_text(one.size)}", file=sys.stderr)
        for path in found.unreadable:
            print(f"{path}: cannot be read", file=sys.stderr)
        for path in found.cut_off:
            print(f"{path}: {size_text(path.stat().st_size)} of a download that was cut off", file=sys.stderr)
        try:
            answer = input(f"Remove {options.name}? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing was removed", file=sys.stderr)
            return 1
    print(f"removed {options.name}: {size_text(remove(found, hub))} freed")
    return 0
