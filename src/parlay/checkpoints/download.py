"""Large files of the hub into its cache: room is made sure of, an earlier download goes on, bytes are compared.

The hub's own library drops what came of a file when it is interrupted. Here that stays, beside the place in its
cache where the whole file will be, under a name that is no model's. The library then finds the whole file.
"""

import errno
import fcntl
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

from parlay.checkpoints.hub import Hub, HubName, is_offline, reason_of
from parlay.errors import CapacityError, ModelError, ParlayError
from parlay.log import logger

_PARTIAL = ".partial"
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # what becomes a file's name must be nothing but a digest
_LARGEST = 50_000_000_000  # bytes; larger files take another protocol, which the hub's library has
_RESERVE = 64 << 20  # bytes that a disk keeps free


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file in a repository.

    Attributes:
        path: path in the repository.
        size: size in bytes.
        blob: what it is called in the cache.
        digest: SHA-256 of its content; only large files have one.
    """

    path: str
    size: int
    blob: str
    digest: str | None


def size_text(size: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def storage(repository: str, hub: Hub) -> Path:
    """Return the folder of the hub's cache that is a repository's, which need not exist."""
    from huggingface_hub.file_download import repo_folder_name

    return cache_of(hub) / repo_folder_name(repo_id=repository, repo_type="model")


def cache_of(hub: Hub) -> Path:
    """Return the hub's cache, which need not exist."""
    from huggingface_hub import constants

    return Path(hub.cache_dir or constants.HF_HUB_CACHE).expanduser().absolute()


def prefetch(wanted: HubName, hub: Hub) -> int:
    """Bring the large files that a name means into the hub's cache, and return how many bytes came.

    Where the hub cannot be reached nothing happens: its library, called next, finds what the cache holds or says why.

    Raises:
        ModelError: there is no such file, or what came is not what the hub announced, or less.
        CapacityError: the disk is too small.
    """
    if is_offline():
        return 0
    try:
        commit, files = _list(wanted, hub)
    except ParlayError:
        raise
    except Exception:  # the library lets those of its own, of its transport and of the system through
        return 0
    home = storage(wanted.repository, hub)
    missing = [file for file in files if not (home / "blobs" / file.blob).exists()]
    needed = sum(file.size - _partial_size(home, file) for file in missing)
    _check_room(wanted.repository, home, needed)
    came = 0
    try:
        for file in missing:
            if file.digest is not None and file.size <= _LARGEST:
                came += _fetch(wanted.repository, commit, file, home, hub)
    except OSError as error:
        raise not_written(wanted.repository, home, "HF_HOME", error) from None
    return came


def cut_off(repository: str, hub: Hub) -> list[Path]:
    """Return what came of files of a repository whose downloads were cut off."""
    return sorted((storage(repository, hub) / "blobs").glob(f"*{_PARTIAL}"))


def drop(partial: Path) -> int:
    """Remove what came of a file, unless it is being fetched now; return how many bytes that freed."""
    with _lock(partial.parents[1], partial.name.removesuffix(_PARTIAL)) as mine:
        if not mine or not partial.exists():
            return 0
        size = partial.stat().st_size
        partial.unlink()
        return size


def not_written(name: str, folder: Path, variable: str, error: OSError) -> ParlayError:
    """Return what to say where a download cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return CapacityError(
            f"the disk of {folder} is full, and {name} is not complete; make room (`parlay rm` removes models), or "
            f"set {variable} to another place"
        )
    return ModelError(
        f"{name} could not be written to {folder}: {error.strerror or error}; set {variable} to a place that can be "
        "written to"
    )


def _list(wanted: HubName, hub: Hub) -> tuple[str, list[_File]]:
    """Return the commit, and those of its files that are wanted."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    info = HfApi(token=hub.token).model_info(wanted.repository, revision=hub.revision, files_metadata=True)
    by_path: dict[str, Any] = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    wanted.choose(by_path)
    files = []
    for path in filter_repo_objects(by_path, allow_patterns=wanted.patterns, ignore_patterns=list(wanted.ignored)):
        one = by_path[path]
        digest = one.lfs.sha256 if one.lfs else None
        blob = digest or one.blob_id
        if one.size is not None and _BLOB.fullmatch(str(blob)):
            files.append(_File(path=path, size=one.size, blob=blob, digest=digest))
    return str(info.sha), files


def _partial(home: Path, file: _File) -> Path:
    return home / "blobs" / (file.blob + _PARTIAL)


def _partial_size(home: Path, file: _File) -> int:
    try:
        return _partial(home, file).stat().st_size
    except OSError:
        return 0


def _check_room(name: str, folder: Path, needed: int) -> None:
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if needed and needed + _RESERVE > free:
        raise CapacityError(
            f"{name} needs {size_text(needed)} more in {folder}, and the disk has {size_text(free)} left; make room "
            "(`parlay rm` removes models), or set HF_HOME to another place"
        )


def _fetch(repository: str, commit: str, file: _File, home: Path, hub: Hub) -> int:
    """Fetch one file, or the rest of it, while no other process does."""
    whole, partial = home / "blobs" / file.blob, _partial(home, file)
    whole.parent.mkdir(parents=True, exist_ok=True)
    with _lock(home, file.blob, f"{repository}/{file.path}"):
        if whole.exists():
            return 0
        began = _partial_size(home, file)
        if began > file.size:
            partial.unlink()
            began = 0
        _receive(repository, commit, file, partial, began, hub)
        if _digest(partial) != file.digest:
            partial.unlink()
            raise ModelError(
                f"{repository}/{file.path} came with other bytes than the hub announced, and was dropped; pull it "
                "again"
            )
        partial.replace(whole)
    return file.size - began


@contextmanager
def _lock(home: Path, blob: str, waiting: str = "") -> Iterator[bool]:
    """Hold the hub's library's lock on a file, which another process may be fetching.

    Args:
        home: the repository's folder in the cache.
        blob: the file's name there.
        waiting: what is waited for, if another process holds it; empty gives up, and False.
    """
    lock = home.parent / ".locks" / home.name / f"{blob}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waiting:
                yield False
                return
            logger.warning("another process is fetching %s; waiting for it", waiting)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield True


def _receive(repository: str, commit: str, file: _File, partial: Path, began: int, hub: Hub) -> None:
    from huggingface_hub import get_token, hf_hub_url
    from huggingface_hub.file_download import http_get

    headers = {"accept-encoding": "identity"}  # what is resumed must be counted in the file's own bytes
    if token := hub.token or get_token():
        headers["authorization"] = f"Bearer {token}"
    try:
        with partial.open("ab") as output:
            http_get(
                hf_hub_url(repository, file.path, revision=commit),
                output,
                resume_size=began,
                headers=headers,
                expected_size=file.size,
                displayed_filename=Path(file.path).name,
            )
    except Exception as error:
        came = partial.stat().st_size
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            partial.unlink()  # others need the room too
            raise
        if came > file.size:
            partial.unlink()
            raise ModelError(
                f"{repository}/{file.path} came with more bytes than the {file.size} that the hub announced, and was "
                "dropped; pull it again"
            ) from None
        raise ModelError(
            f"{repository}/{file.path} was cut off after {size_text(came)} of {size_text(file.size)}: "
            f"{reason_of(error, hub)}; pull it again, it goes on from there"
        ) from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
