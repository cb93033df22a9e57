"""`parlay quantize`: write a model as a GGUF file, by default in four bits."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "quantize",
        help="write a model as a GGUF file, for parlay and llama.cpp",
        description="Write a model as one GGUF file that parlay and llama.cpp load, its matrices in blocks of four "
        "or eight bits or as floats of sixteen. The file appears under its name only when it is complete.",
    )
    parser.add_argument(
        "model", help="a directory, a GGUF file, a short name, a name on the hub, or an embedded model"
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT.gguf", help="the file to write")
    parser.add_argument(
        "--kind",
        choices=("int4", "int8", "bf16", "f16"),
        default="int4",
        help="int4: blocks Q4_1, embedding and head Q8_0; int8: blocks Q8_0; else floats (default: int4)",
    )
    parser.add_argument("--force", action="store_true", help="replace a file of that name")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Find the model, write it, print its size."""
    from parlay.checkpoints.find import find_model
    from parlay.cli.report import progress
    from parlay.models.export.gguf import check_output, export

    check_output(options.output, options.force)  # before a model is downloaded
    with progress() as tick:
        written = export(find_model(options.model), options.output, options.kind, force=options.force, tick=tick)
    print(f"{written.path}: {written.size / 1e6:,.1f} MB, {written.bits:.2f} bits per weight")
    return 0
