"""`parlay show`: the description of a model on this machine, before it is loaded."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from parlay.cli.listing import as_json
from parlay.cli.pull import add_hub_flags
from parlay.cli.report import aligned

if TYPE_CHECKING:
    from parlay.checkpoints.details import Details


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "show",
        help="what a model is: architecture, parameters, context, tokenizer, license",
        description="Tell what the files of a model on this machine say of it, without loading it.",
    )
    parser.add_argument("name", help="a short name, an embedded model, a directory, a GGUF file or a name on the hub")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    add_hub_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the files' descriptions and print them."""
    from parlay.checkpoints.details import read_details
    from parlay.checkpoints.hub import Hub

    card = read_details(options.name, Hub(cache_dir=options.download_dir))
    if options.json:
        print(json.dumps({**asdict(card), "local": as_json(card.local)}))
        return 0
    print(*aligned(_lines(card)), sep="\n")
    return 0


def _lines(card: "Details") -> list[tuple[str, str]]:
    from parlay.checkpoints.download import size_text

    local, shape = card.local, card.shape
    roles = {"model": "model", "head": "draft head, for --speculative-config", "draft": "draft model"}
    total = sum(card.kinds.values())
    kinds = ", ".join(f"{kind} {size / total:.0%}" for kind, size in card.kinds.items())
    sizes = ", ".join(f"{key.removeprefix('num_').replace('_', ' ')} {value:,}" for key, value in shape.items())
    generation = ", ".join(f"{key} {value:g}" for key, value in card.generation.items())
    return [
        ("name", local.name),
        ("what", roles[local.role]),
        ("architecture", card.architecture),
        ("parameters", "unknown, they are packed" if card.parameters is None else f"{card.parameters:,}"),
        ("shape", sizes or "unknown"),
        ("context", "unknown" if card.context_length is None else f"{card.context_length:,} tokens"),
        ("stored as", kinds or local.kind),
        ("tokenizer", card.tokenizer or "none"),
        ("chat template", "yes" if card.chat_template else "no"),
        ("generation", generation or "no defaults of its own"),
        ("license", card.license or "unknown"),
        ("size", size_text(local.size)),
        ("path", str(local.path)),
    ]
