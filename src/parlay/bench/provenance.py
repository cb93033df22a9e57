"""What a figure was measured on."""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from parlay import __version__, env


def provenance() -> dict[str, Any]:
    """Return the command, the commit and the versions behind a measurement."""
    return {
        "command": " ".join(["parlay", *sys.argv[1:]]),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "parlay": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "threads": env.threads(),
    }


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
    except OSError:  # no git on this machine
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    values = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    return f"{values.get('model name', 'unknown')} (family {values.get('cpu family')}, model {values.get('model')})"
