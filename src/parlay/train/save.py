"""What a training run leaves on disk. Every file is complete or not there."""

import fcntl
import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from parlay.checkpoints.files import VOCABULARIES
from parlay.errors import ConfigError, brief, shown
from parlay.train.trainee import Trainee

_DIGESTS = {"target_weights": "target", "texts": "set of data"}  # of a run's identity, and what they stand for
_CONFIGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a run's directory against other runs.

    Raises:
        ConfigError: another run is there.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another run is writing to {directory}; wait for its end, or give another output"
            ) from None
        yield
    finally:
        os.close(handle)


def save_checkpoint(path: Path, state: dict[str, Any], identity: dict[str, Any]) -> None:
    """Write a run's state and identity.

    Raises:
        ConfigError: it cannot be written.
    """
    _write_atomically(path, lambda at: torch.save({"identity": identity, "state": state}, at))


def load_checkpoint(path: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """Return a run's state, or None if it has not begun.

    Args:
        path: path of the checkpoint.
        identity: what distinguishes the run from others; a part of it is compared as far as it goes.

    Raises:
        ConfigError: the checkpoint is damaged, or of another run.
    """
    if not path.exists():
        return None
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        known, state = dict(saved["identity"]), dict(saved["state"])
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, pickle.UnpicklingError):
        raise ConfigError(f"{path} is damaged; delete it to start the run over") from None
    for key, value in identity.items():
        if known.get(key) == value:
            continue
        differs = (
            f"another {_DIGESTS[key]}" if key in _DIGESTS else f"{key}={shown(known.get(key))}, not {shown(value)}"
        )
        raise ConfigError(f"{path} is of a run with {differs}; use the same, or another output")
    return state


def save_head(output: Path, trainee: Trainee, dtype: torch.dtype, card: str, target: Path) -> None:
    """Write a head in its public format; `config.json`, without which it is none, comes last.

    Args:
        output: the directory.
        trainee: the head.
        dtype: dtype of its weights; integers stay as they are.
        card: text of its README.md.
        target: its tokenizer is copied to a head that is a model by itself.

    Raises:
        ConfigError: it cannot be written.
    """
    config, tensors = trainee.export()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")

    def stored(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()

    weights = {name: stored(tensor) for name, tensor in tensors.items()}
    _write_atomically(output / trainee.file, lambda at: save_file(weights, at, metadata={"format": "pt"}))
    for name, content in trainee.extra_files().items():
        found = {key: stored(part) if isinstance(part, Tensor) else part for key, part in content.items()}
        _write_atomically(output / name, partial(torch.save, found))
    if trainee.tokenized:
        for name in ("tokenizer.json", *_CONFIGS, *VOCABULARIES):
            for file in target.glob(name):
                _write_atomically(output / file.name, partial(Path.write_bytes, data=file.read_bytes()))
    _write_atomically(output / "README.md", lambda at: at.write_text(card, "utf-8"))
    _write_atomically(output / "config.json", lambda at: at.write_text(json.dumps(config, indent=2) + "\n", "utf-8"))


def _write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, and rename it once it is on disk."""
    beside = path.with_name(path.name + ".partial")
    try:
        write(beside)
        beside.chmod(0o644)  # some libraries make their files private
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, RuntimeError, SafetensorError) as error:  # the last two are what libraries make of a full disk
        reason = error.strerror if isinstance(error, OSError) else f"is the disk full? ({brief(str(error))})"
        beside.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written: {reason}; fix that and run the same command again to resume from the last "
            "checkpoint"
        ) from None
