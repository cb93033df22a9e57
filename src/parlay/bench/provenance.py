"""What a figure was measured on."""

import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from parlay import __version__, env, system


def provenance(numerics: Iterable[str] = ()) -> dict[str, Any]:
    """Return the command, the commit, the versions and the engines' numerics ids behind a measurement."""
    return {
        "command": " ".join([_program(), *_public(sys.argv[1:])]),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "modified": bool(
            _git("status", "--porcelain", "--untracked-files=no") or _git("status", "--porcelain", "..")
        ),
        "parlay": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": system.processor()[0],
        "threads": env.threads(),
        "numerics": sorted(set(numerics)),
    }


def _program() -> str:
    """Return how a user calls this program: the command, or a benchmark of the repository."""
    script = Path(sys.argv[0])
    return f"python -m benchmarks.{script.stem}" if script.parent.name == "benchmarks" else "parlay"


def _public(arguments: Sequence[str]) -> list[str]:
    """Return a command line without secrets."""
    shown: list[str] = []
    for argument in arguments:
        if shown and shown[-1].replace("_", "-") == "--hf-token":
            argument = "***"
        name, equals, _ = argument.partition("=")
        hide = equals and name.replace("_", "-") == "--hf-token"
        shown.append(f"{name}=***" if hide else argument)
    return shown


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
    except OSError:  # no git on this machine
        return ""
    return done.stdout.strip()
