"""The `parlay` command."""

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from parlay import __version__, env, log
from parlay.cli import (
    bench,
    chat,
    demo,
    explain,
    generate,
    listing,
    pull,
    quantize,
    rank,
    remove,
    run,
    serve,
    show,
    train,
    verify,
)
from parlay.cli.flags import Parser, normalise
from parlay.cli.settings import apply_settings
from parlay.errors import ParlayError, visible
from parlay.garbage_collection import raise_threshold

_ENVIRONMENT = """environment:
  PARLAY_THREADS   threads for compute, as --threads (default: one for each available core)
  PARLAY_MEMORY    bytes of memory for weights and cache (default: what is free)
  PARLAY_LOG       level of the log: DEBUG, INFO, WARNING, ERROR (default: WARNING)
  PARLAY_ISA       instruction set: amx, avx512bf16, avx512vnni, avx512, avx2, baseline; on ARM neonbf16, neoni8mm,
                   neondot, neon, baseline (default: the best)
  PARLAY_KERNELS   native or reference (default: native where they were built)
  PARLAY_API_KEY   keys of `parlay serve`, separated by commas
  PARLAY_FLAG_...  a flag's value, such as PARLAY_FLAG_MAX_MODEL_LEN=4096 for --max-model-len
  HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE and the hub's other variables count too.
`parlay COMMAND --help` lists a command's flags.
"""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # what writing may meet, and no reading
_HERE = Path(__file__).parent


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="parlay",
        description="A language model engine whose heart is speculative decoding: several tokens per step, "
        "never another token.",
        epilog=_ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"parlay {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    models = pull, listing, show, remove
    for command in (demo, run, chat, generate, serve, rank, *models, train, quantize, bench, explain, verify):
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    raise_threshold()
    if sys.stdout is None:  # it was closed before the start
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    parser = make_parser()
    try:
        words = normalise(list(sys.argv[1:] if arguments is None else arguments))
        apply_settings(parser.commands, words)
        options = parser.parse_args(words)
        if "threads" in options:
            env.adopt({"PARLAY_THREADS": str(options.threads)})
            env.threads()  # which refuses numbers out of range
        log.configure()
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            warnings.filterwarnings("default", category=DeprecationWarning, module=r"parlay\.cli\.")
            status = int(options.run(options))
            sys.stdout.flush()
            return status
    except ParlayError as error:
        print("parlay:", visible(str(error), keep="\n"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has closed it. Nothing more can be written, not even at exit.
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        print(
            f"parlay: the output cannot be written: {error.strerror}; free space, or write elsewhere", file=sys.stderr
        )
        _drop_output()
        return 1


def _drop_output() -> None:
    with suppress(OSError, ValueError):  # another stream may stand for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(otherwise: Any, message: Any, category: Any, filename: str, *more: Any, **options: Any) -> None:
    """Show a warning about the command line as one sentence, others as they are shown otherwise."""
    if _HERE in Path(filename).parents:
        print("parlay:", visible(str(message), keep="\n"), file=sys.stderr)
    else:
        otherwise(message, category, filename, *more, **options)


if __name__ == "__main__":
    sys.exit(main())
