"""The flag that says which checkpoints draft for a target."""

import argparse

from parlay.errors import ConfigError


def add_draft_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--draft METHOD=PATH`, which `given_drafts` reads."""
    parser.add_argument(
        "--draft",
        action="append",
        default=[],
        type=_draft,
        metavar="METHOD=PATH",
        help="checkpoint that drafts for this target with a method; may be given several times",
    )


def given_drafts(options: argparse.Namespace) -> dict[str, str]:
    """Return the checkpoints by their methods' names.

    Raises:
        ConfigError: a method has two.
    """
    found = dict(options.draft)
    if len(found) < len(options.draft):
        raise ConfigError("--draft names a method twice; give one checkpoint each")
    return found


def _draft(text: str) -> tuple[str, str]:
    method, _, path = text.partition("=")
    if not method or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not METHOD=PATH")
    return method, path
