"""A parallel draft model that agrees with a random target in part: the target itself, which has never seen a mask."""

import json
import shutil
from pathlib import Path


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    shutil.copytree(target, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "pard_token": 255}))
