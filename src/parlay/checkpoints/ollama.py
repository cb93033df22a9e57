"""Models that Ollama has on this machine, by its names: `ollama:qwen3:4b`, `ollama:user/model`.

A manifest, `manifests/HOST/NAMESPACE/MODEL/TAG` in its folder, is a JSON object of layers, which are files in `blobs`
under their digests: the model (GGUF), sampling parameters, and others. Newer versions have `manifests-v2` beside it.
Nothing is written there. The chat template is the GGUF file's own; that of the manifest is in another language.

Source: Ollama's `types/model/name.go` and `manifest` package.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from parlay import env
from parlay.checkpoints.files import read_json
from parlay.errors import ModelError, shown

PREFIX = "ollama:"
_TYPE = "application/vnd.ollama.image."
_OWNER, _TAG = "library", "latest"  # where a name has none
_RENAMED = {"repeat_penalty": "repetition_penalty"}
_FOREIGN = {
    "adapter": "applies an adapter (LoRA) to a model; merge it into the model's weights",
    "tensor": "is stored tensor by tensor, not as GGUF; take its GGUF or Hugging Face form",
}


def find(name: str) -> Path:
    """Return the GGUF file of a model.

    Raises:
        ModelError: Ollama has no such model here, or it has another form.
    """
    manifest = _manifest(name)
    layers = _layers(manifest)
    for kind, trouble in _FOREIGN.items():
        if kind in layers:
            raise ModelError(f"{shown(name)} {trouble}")
    file = _blob(manifest, layers.get("model"))
    if file is None:
        raise ModelError(
            f"{shown(name)} cannot be read: {manifest} names no file that is here and may be read; pull it again, or "
            "change the permissions"
        )
    return file


def sampling(name: str) -> dict[str, float]:
    """Return the sampling parameters that a model comes with, by the names of requests; others are left out.

    Raises:
        ModelError: Ollama has no such model here, or it has another form.
    """
    manifest = _manifest(name)
    from parlay.checkpoints.sampling_defaults import usable

    file = _blob(manifest, _layers(manifest).get("params"))
    if file is None:
        return {}
    return usable({_RENAMED.get(key, key): value for key, value in read_json(file).items()}, file)


def names() -> Iterator[str]:
    """Yield the name of every model that Ollama has here."""
    found = set[str]()
    for folder in _folders():
        for manifest in folder.glob("*/*/*/*"):
            *_, host, owner, model, tag = manifest.parts
            short = model if owner == _OWNER else f"{owner}/{model}"
            if not _is_own(host):
                short = f"{host}/{owner}/{model}"
            if "model" in _layers(manifest):
                found.add(f"{PREFIX}{short}:{tag}")
    yield from sorted(found)


def _manifest(name: str) -> Path:
    """Return where the manifest of a model lies."""
    owner, _, rest = name.removeprefix(PREFIX).lower().rpartition("/")  # names are alike in any case
    model, _, tag = rest.partition(":")
    wanted = [*(owner or _OWNER).split("/"), model, tag or _TAG]
    for folder in _folders():
        for manifest in sorted(folder.glob("*/*/*/*")):
            *place, tag_here = (part.lower() for part in manifest.parts[-4:])
            if [*place, tag_here][-len(wanted) :] == wanted and (len(wanted) == 4 or _is_own(place[0])):
                return manifest
    raise ModelError(f"Ollama has no model {shown(name)} on this machine; `parlay list` shows which it has")


def _is_own(host: str) -> bool:
    """Whether a host is Ollama's own, which names leave out."""
    return "ollama" in host


def _folders() -> list[Path]:
    """Return the folders of manifests there are."""
    found = [root / kind for root in env.ollama_models() for kind in ("manifests", "manifests-v2")]
    return [folder for folder in found if os.access(folder, os.R_OK)]


def _layers(manifest: Path) -> dict[str, str]:
    """Return the digest of each kind of layer; of several of a kind the first one's. Empty if it cannot be read."""
    try:
        listed = read_json(manifest).get("layers")
    except ModelError:
        return {}
    found: dict[str, str] = {}
    for layer in listed if isinstance(listed, list) else ():
        kind, digest = (layer.get(key) for key in ("mediaType", "digest")) if isinstance(layer, dict) else ("", "")
        if isinstance(kind, str) and isinstance(digest, str) and kind.startswith(_TYPE):
            found.setdefault(kind.removeprefix(_TYPE).partition(";")[0], digest)
    return found


def _blob(manifest: Path, digest: str | None) -> Path | None:
    """Return the file of a layer; None if it is not here, or may not be read."""
    if digest is None or not re.fullmatch(r"sha256[:-][0-9a-f]+", digest):
        return None
    file = manifest.parents[4] / "blobs" / digest.replace(":", "-")
    return file if os.access(file, os.R_OK) and file.is_file() else None
