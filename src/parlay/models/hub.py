"""Models by the name they have on the Hugging Face hub: downloaded once, then found in its cache.

Whether anything is downloaded at all is for the hub's own library to know: it reads HF_HUB_OFFLINE.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from parlay.errors import ModelError
from parlay.models.gguf_parts import all_parts, first_part, whole_name

_PART = r"[A-Za-z0-9_][\w.-]*"
_ID = re.compile(rf"([A-Za-z0-9][\w.-]*/{_PART})(?:/((?:{_PART}/)*{_PART}\.gguf)|:([A-Za-z]\w*))?", re.ASCII)
# Copies of the weights in forms that nobody here reads, and what lies in folders.
_PICKLED = ("pytorch_model*.bin", "medusa_lm_head.pt")
_IGNORED = ("*/*", "consolidated*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """How models are fetched.

    Attributes:
        revision: a branch, tag or commit; None is the main branch.
        token: of an account that may read the model; None is what the hub's own library finds.
        cache_dir: the cache; None is the hub's own.
    """

    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    cache_dir: str | None = None


DEFAULT = Hub()


def is_hub_id(name: str) -> bool:
    """Whether `name` can be a model's on the hub: `owner/model`, `owner/model/file.gguf` or `owner/model:Q4_K_M`."""
    return _ID.fullmatch(name) is not None


def fetch(name: str, hub: Hub, weights: bool = True) -> Path:
    """Return the directory of a model's files in the cache, or its GGUF file there, downloading what is missing.

    Weights are fetched in safetensors format, and as `.bin` files only where there are none; a GGUF file only if
    `name` says which: by its path, or by how its tensors are stored, with which names of such files end. Of a file in
    parts all are fetched, and the first is returned.

    Args:
        name: as `is_hub_id` has it.
        hub: how to fetch it.
        weights: False fetches only what a tokenizer needs, unless that is in a GGUF file.

    Raises:
        ModelError: the model is neither in the cache nor can it be downloaded, or has no such file.
    """
    match = _ID.fullmatch(name)
    assert match is not None
    repository, file, kind = match.groups()
    if file:
        path = first_part(_download(repository, hub, [all_parts(file)]) / file)
        if not path.is_file():
            raise ModelError(f"the model {repository!r} has no file {file!r}; look at its list of files on the hub")
        return path
    if kind:
        ends = tuple(f"{mark}{k}.gguf" for mark in "-._" for k in dict.fromkeys((kind, kind.lower(), kind.upper())))
        parts = [f"*{end.removesuffix('.gguf')}-?????-of-?????.gguf" for end in ends]
        folder = _download(repository, hub, [*(f"*{end}" for end in ends), *parts])
        files = {first_part(p): whole_name(p) for p in folder.rglob("*.gguf")}
        found = sorted(str(p.relative_to(folder)) for p, name in files.items() if name.endswith(ends))
        if len(found) != 1:
            names = ", ".join(found[:3]) or "none"
            raise ModelError(
                f"{name!r} means the one GGUF file whose name ends in {kind}, but there is {names}; give its path as "
                f"{repository}/FILE.gguf"
            )
        return folder / found[0]
    path = _download(repository, hub, ["*.json", "*.jinja", *["*.safetensors"] * weights], _IGNORED)
    if weights and not any(path.glob("*.safetensors")):
        path = _download(repository, hub, ["*.json", "*.jinja", *_PICKLED], _IGNORED)
    return path


def _download(repository: str, hub: Hub, allowed: list[str], ignored: tuple[str, ...] = ()) -> Path:
    from huggingface_hub import is_offline_mode, snapshot_download  # slow to import

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
        reason = str(error).strip().split("\n")[0].rstrip(".")
        if hub.token:
            reason = reason.replace(hub.token, "***")
        remedy = "unset HF_HUB_OFFLINE" if is_offline_mode() else "check the name, the token and the network"
        raise ModelError(
            f"there is no directory {repository!r}, and the model of that name{at} is not in the hub's cache and "
            f"could not be fetched: {reason or type(error).__name__}; {remedy}, or give a directory"
        ) from None
