"""Models by the name they have on the Hugging Face hub: downloaded once, then found in its cache.

Whether anything is downloaded at all is for the hub's own library to know: it reads HF_HUB_OFFLINE.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from parlay.checkpoints.files import VOCABULARIES
from parlay.checkpoints.gguf.parts import first_part, parts_pattern, whole_name
from parlay.errors import ModelError

_PART = r"[A-Za-z0-9_][\w.-]*"
_ID = re.compile(rf"([A-Za-z0-9][\w.-]*/{_PART})(?:/((?:{_PART}/)*{_PART}\.gguf)|:([A-Za-z]\w*))?", re.ASCII)
# The forms in which the hub's pages and other tools write a name: an address, of a model or of one of its files.
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/(?=[^/]+/[^/]+)|hf://")
_VIEW = re.compile(r"/(?:tree|blob|resolve|raw)/main(?=/|$)|[?#].*$|/$")
_PICKLED = ("pytorch_model*.bin", "medusa_lm_head.pt")
_TEXTS = ("*.json", "*.jinja", *VOCABULARIES)
# Copies of the weights in formats that parlay does not read, and files in folders, apart from templates (`.jinja`).
_IGNORED = ("*/*[!a]", "consolidated*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """How models are fetched.

    Attributes:
        revision: a branch, tag or commit; None is the main branch.
        token: token of an account that may read the model; None is what the hub's own library finds.
        cache_dir: the cache; None is the hub's own.
    """

    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    cache_dir: str | None = None


DEFAULT = Hub()


def is_hub_id(name: str) -> bool:
    """Whether `name` can be a model's on the hub: `owner/model`, `owner/model/file.gguf` or `owner/model:Q4_K_M`.

    Before it there may be the hub's address, as in `hf.co/owner/model`.
    """
    return _ID.fullmatch(_without_address(name)) is not None


def _without_address(name: str) -> str:
    found = _ADDRESS.match(name)
    return name if found is None else _VIEW.sub("", name[found.end() :])


@dataclass(frozen=True, slots=True)
class HubName:
    """What a name on the hub asks for.

    Attributes:
        repository: the repository, `owner/model`.
        file: the path of one GGUF file, if the name has it.
        kind: what the name of the one GGUF file ends in, if the name says so.
    """

    repository: str
    file: str | None
    kind: str | None

    @property
    def patterns(self) -> list[str]:
        """What the wanted files are called; of a directory's weights, those in safetensors."""
        if self.file:
            return [parts_pattern(self.file)]
        if self.kind:
            parts = [f"*{end.removesuffix('.gguf')}-?????-of-?????.gguf" for end in self._ends]
            return [*(f"*{end}" for end in self._ends), *parts]
        return [*_TEXTS, "*.safetensors"]

    @property
    def ignored(self) -> tuple[str, ...]:
        """What the files that are left out are called."""
        return () if self.file or self.kind else _IGNORED

    def choose(self, files: Iterable[str]) -> str | None:
        """Return the GGUF file that is meant, of one in parts the first; None where a directory is.

        Args:
            files: paths in the repository.

        Raises:
            ModelError: there is none, or there are several.
        """
        firsts = {str(first_part(Path(file))) for file in files if file.endswith(".gguf")}
        if self.file:
            first = str(first_part(Path(self.file)))
            if first not in firsts:
                raise ModelError(
                    f"the model {self.repository!r} has no file {self.file!r}; look at its list of files on the hub"
                )
            return first
        if self.kind is None:
            return None
        found = sorted(first for first in firsts if whole_name(Path(first)).endswith(self._ends))
        if len(found) != 1:
            names = ", ".join(found[:3]) or "none"
            raise ModelError(
                f"'{self.repository}:{self.kind}' means the one GGUF file whose name ends in {self.kind}, but there "
                f"is {names}; give its path as {self.repository}/FILE.gguf"
            )
        return found[0]

    @property
    def _ends(self) -> tuple[str, ...]:
        kind = self.kind or ""
        return tuple(f"{mark}{k}.gguf" for mark in "-._" for k in dict.fromkeys((kind, kind.lower(), kind.upper())))


def parse_hub_name(name: str) -> HubName:
    """Return what a name that `is_hub_id` asks for."""
    match = _ID.fullmatch(_without_address(name))
    assert match is not None
    return HubName(*match.groups())


def fetch(name: str, hub: Hub, weights: bool = True, called: str | None = None) -> Path:
    """Return the directory of a model's files in the cache, or its GGUF file there, downloading what is missing.

    Weights are fetched in safetensors format, and as `.bin` files only where there are none; a GGUF file only if
    `name` says which: by its path, or by how its tensors are stored, with which names of such files end. Of a file in
    parts all are fetched, and the first is returned.

    Args:
        name: a name on the hub, see `is_hub_id`.
        hub: how to fetch it.
        weights: False fetches only what a tokenizer needs, unless that is in a GGUF file.
        called: the short name that stands for it, if it was given by that.

    Raises:
        ModelError: the model is neither in the cache nor can it be downloaded, or has no such file.
    """
    wanted = parse_hub_name(name)
    if called is None:
        here = f"there is no directory {wanted.repository!r} in {Path.cwd()}, and the model of that name"
    else:
        here = f"{called} ({name})"
    if wanted.file or wanted.kind:
        folder = _download(wanted.repository, hub, here, wanted.patterns)
        file = wanted.choose(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))
        assert file is not None
        return folder / file
    path = _download(wanted.repository, hub, here, [*_TEXTS, *["*.safetensors"] * weights], _IGNORED)
    if weights and not any(path.glob("*.safetensors")):
        path = _download(wanted.repository, hub, here, [*_TEXTS, *_PICKLED], _IGNORED)
    return path


def _download(repository: str, hub: Hub, subject: str, allowed: list[str], ignored: tuple[str, ...] = ()) -> Path:
    from huggingface_hub import snapshot_download  # slow to import

    try:
        return Path(
            snapshot_download(
                repository,
                revision=hub.revision,
                token=hub.token,
                cache_dir=hub.cache_dir,
                allow_patterns=allowed,
                ignore_patterns=list(ignored),
            )
        )
    except Exception as error:  # the library lets those of its own, of its transport and of the system through
        at = f" at revision {hub.revision!r}" if hub.revision else ""
        if is_offline():
            why, remedy = ", and HF_HUB_OFFLINE forbids fetching it", "unset HF_HUB_OFFLINE"
        else:
            why = f" and could not be fetched: {reason_of(error, hub)}"
            remedy = "check the name, the token and the network"
        raise ModelError(
            f"{subject}{at} is not in the hub's cache{why}; {remedy}, or give a directory or a GGUF file"
        ) from None


def is_offline() -> bool:
    """Whether the hub's library is to stay offline."""
    from huggingface_hub import is_offline_mode

    return bool(is_offline_mode())


def reason_of(error: Exception, hub: Hub) -> str:
    """Return what the hub's library, its transport or the system say, in one line and without the token."""
    reason = str(error).strip().split("\n")[0].rstrip(".")
    return (reason.replace(hub.token, "***") if hub.token else reason) or type(error).__name__
