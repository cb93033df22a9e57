"""Removing models from the hub's cache or from parlay's own, and nothing else."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from parlay.checkpoints import ollama
from parlay.checkpoints.download import cache_of, cut_off, drop
from parlay.checkpoints.find import here, unknown
from parlay.checkpoints.hub import DEFAULT, Hub, is_hub_id, parse_hub_name
from parlay.checkpoints.inventory import LocalCheckpoint, on_this_machine, snapshots_of, take_inventory
from parlay.checkpoints.short_names import resolve
from parlay.errors import ConfigError, ModelError, shown

_WEIGHTS = (".gguf", ".safetensors", ".bin", ".pt")


@dataclass(frozen=True, slots=True)
class Removable:
    """The removable files that a name means.

    Attributes:
        checkpoints: checkpoints of all revisions.
        cut_off: incomplete downloads of the same repository.
        unreadable: folders of revisions in the hub's cache that hold nothing that parlay can read.
    """

    checkpoints: list[LocalCheckpoint]
    cut_off: list[Path]
    unreadable: list[Path] = field(default_factory=list)


def removable(name: str, hub: Hub = DEFAULT) -> Removable:
    """Return the removable files that a name means.

    Raises:
        ConfigError: it came with the package, or is a file of the user's own.
        ModelError: there is nothing of that name here.
    """
    path = here(name)
    if path is None and name.startswith(ollama.PREFIX):
        raise ConfigError(f"{shown(name)} is Ollama's, and parlay does not remove it; `ollama rm` does")
    if path is None:
        found = on_this_machine(name, hub)
        named = None if "/" in name else resolve(name)
        path = None if named is None else named.path
    else:  # as everywhere, a path counts before a name
        found, named = [one for one in take_inventory(hub).checkpoints if one.path == path.absolute()], None
    if any(one.place == "ollama" for one in found):
        raise ConfigError(f"{shown(name)} is Ollama's, and parlay does not remove it; `ollama rm` does")
    if any(one.place == "embedded" for one in found):
        raise ConfigError(f"{shown(name)} is a part of parlay and cannot be removed")
    repositories = {one.repository for one in found if one.repository}
    wanted = name if named is None else named.model
    if path is None and is_hub_id(wanted):
        repositories.add(parse_hub_name(wanted).repository)
    partial = [file for repository in repositories for file in cut_off(repository, hub)]
    odd = [] if found else [folder for one in repositories for folder in snapshots_of(one, hub)]
    readable = sorted(
        one.name for one in take_inventory(hub).checkpoints if odd and any(d in one.path.parents for d in odd)
    )
    if readable:
        raise ConfigError(f"{shown(name)} is here in single files, give one: {', '.join(map(shown, readable))}")
    if found or partial or odd:
        for one in (*(file for local in found if local.place == "hub" for file in local.files), *odd):
            _check_inside(one, hub)
        return Removable(found, partial, odd)
    if path is not None:
        raise ConfigError(
            f"{path} is a file or directory of your own, which parlay does not remove; only models in the hub's "
            "cache and in parlay's own are removed by name"
        )
    if named is None and not is_hub_id(name):
        raise unknown(name)
    raise ModelError(f"{shown(name)} is not on this machine; `parlay list` shows what is")


def remove(what: Removable, hub: Hub = DEFAULT) -> int:
    """Remove what `removable` returned, and return how many bytes that freed.

    Raises:
        ModelError: a file cannot be removed.
    """
    try:
        freed = sum(drop(partial) for partial in what.cut_off)
        freed += sum(_drop_revision(folder, hub) for folder in what.unreadable)
        for one in what.checkpoints:
            if one.place == "wheel":
                freed += one.size
                one.path.unlink(missing_ok=True)
            elif one.place == "hub":
                freed += forget(one.files)
                _sweep(one, hub)
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be removed: {error.strerror}") from None
    return freed


def forget(files: Iterable[Path]) -> int:
    """Remove files of snapshots in the hub's cache, and what only they link to; return how many bytes that freed."""
    freed = 0
    for file in files:
        blob, linked = file.resolve(), file.is_symlink()
        freed += 0 if linked or not file.exists() else file.stat().st_size
        file.unlink(missing_ok=True)
        snapshots = next((parent for parent in file.parents if parent.name == "snapshots"), None)
        if not linked or snapshots is None or blob.parent != (snapshots.parent / "blobs").resolve():
            continue
        if not any(other.is_symlink() and other.resolve() == blob for other in snapshots.rglob("*")):
            freed += blob.stat().st_size
            blob.unlink()
    return freed


def _check_inside(path: Path, hub: Hub) -> None:
    """Refuse what a link leads to: files that were linked into the hub's cache belong to others.

    Raises:
        ConfigError: a folder on the way is a link; it is named.
    """
    cache = cache_of(hub)
    for folder in (path, *path.parents):
        if folder == cache:
            return
        if folder.is_symlink() and folder.is_dir():
            raise ConfigError(f"{folder} is a link to {folder.resolve()}, where nothing is removed; remove the link")


def _sweep(one: LocalCheckpoint, hub: Hub) -> None:
    """Remove a revision that has no weights any more, its configs too, and the repository with its last revision."""
    folder = next(parent for parent in (one.path, *one.path.parents) if parent.name == one.commit)
    if not folder.is_dir() or any(file.suffix in _WEIGHTS for file in folder.rglob("*")):
        return
    _drop_revision(folder, hub)


def _drop_revision(folder: Path, hub: Hub) -> int:
    """Remove a revision from the hub's cache, and return how many bytes that freed."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        scanned = scan_cache_dir(cache_of(hub))
    except CacheNotFound:
        return 0
    # A mirrored repository has the same commits, and the hub's library removes the first that it finds.
    own = frozenset(one for one in scanned.repos if one.repo_path in folder.parents)
    strategy = replace(scanned, repos=own).delete_revisions(folder.name)
    strategy.execute()
    return strategy.expected_freed_size
