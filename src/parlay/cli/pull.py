"""`parlay pull`: download a model in advance."""

import argparse
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pull",
        help="download a model by a short name or its name on the hub",
        description="Download a model into the hub's cache, or what is missing of it. A large file that was cut off "
        "goes on where it ended. `parlay list --names` shows the short names.",
    )
    parser.add_argument("name", help="a short name such as llama3.2:1b, or owner/model, owner/model:KIND")
    add_hub_flags(parser, fetching=True)
    parser.set_defaults(run=run)


def add_hub_flags(parser: argparse.ArgumentParser, fetching: bool = False) -> None:
    """Add the flags for the hub's cache and, to fetch, for the revision and the account."""
    parser.add_argument("--download-dir", metavar="DIR", help="the hub's cache (default: HF_HUB_CACHE, or the hub's)")
    if fetching:
        parser.add_argument("--revision", help="branch, tag or commit (default: the main branch)")
        parser.add_argument("--hf-token", metavar="TOKEN", help="of an account that may read it (default: HF_TOKEN)")


def run(options: argparse.Namespace) -> int:
    """Download, and print the path and the size."""
    from parlay.checkpoints.download import size_text
    from parlay.checkpoints.hub import Hub
    from parlay.checkpoints.pull import pull

    hub = Hub(revision=options.revision, token=options.hf_token, cache_dir=options.download_dir)
    try:
        pulled = pull(options.name, hub)
    except KeyboardInterrupt:
        print(f"\nstopped; `parlay pull {options.name}` goes on from here", file=sys.stderr)
        raise
    came = f"{size_text(pulled.came)} downloaded" if pulled.came else "already downloaded"
    print(f"{options.name}: {size_text(pulled.size)} in {pulled.path} ({came})")
    return 0
