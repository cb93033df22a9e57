"""Models by the name they have on the Hugging Face hub: downloaded once, then found in its cache."""

import re
from dataclasses import dataclass
from pathlib import Path

from parlay.errors import ModelError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Where and how models are fetched.

    Attributes:
        revision: a branch, tag or commit; None is the main branch.
        token: of an account that may read the model; None is what the hub's own library finds.
        cache_dir: the cache; None is the hub's own.
        offline: look into the cache alone.
    """

    revision: str | None = None
    token: str | None = None
    cache_dir: str | None = None
    offline: bool = False


DEFAULT = Hub()


def is_hub_id(name: str) -> bool:
    """Whether `name` can be a model's name on the hub, `owner/model`."""
    return _ID.fullmatch(name) is not None


def fetch(name: str, hub: Hub) -> Path:
    """Return the directory of a model's files in the cache, downloading what is missing there.

    Weights are fetched in safetensors format, and as `.bin` files only where there are none.

    Raises:
        ModelError: the model is neither in the cache nor can it be downloaded.
    """
    from huggingface_hub import snapshot_download  # slow to import

    def download(*patterns: str) -> Path:
        try:
            return Path(
                snapshot_download(
                    name,
                    revision=hub.revision,
                    token=hub.token,
                    cache_dir=hub.cache_dir,
                    local_files_only=hub.offline,
                    allow_patterns=list(patterns),
                    ignore_patterns=["*/*"],
                )
            )
        except Exception as error:  # the library lets those of its own, of its transport and of the system through
            at = f" at revision {hub.revision!r}" if hub.revision else ""
            reason = str(error).strip().split("\n")[0]
            remedy = "allow downloads" if hub.offline else "check the name, the token and the network"
            raise ModelError(
                f"there is no directory {name!r}, and the model of that name{at} is not in the hub's cache and could "
                f"not be fetched: {reason}; {remedy}, or give a directory"
            ) from None

    path = download("*.json", "*.safetensors", "*.jinja")
    if not any(path.glob("*.safetensors")):
        path = download("*.json", "*.bin", "*.jinja")
    return path
