"""An EAGLE head that agrees with a random target in part."""

from pathlib import Path

from eagles import fit_eagle
from heads import texts_of


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    fit_eagle(path, target, *texts_of(target))
