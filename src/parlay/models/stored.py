"""A model's tensors as its files have them: under which names, and whether the output layer is the embedding."""

from collections.abc import Sequence
from dataclasses import replace

from parlay.checkpoints.config import TOWER
from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ModelError
from parlay.log import logger
from parlay.models.config import ModelConfig
from parlay.types.progress import OnRead, ignore
from parlay.types.storage import Storage

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def network_names(own: str, name: str, kinds: Sequence[str] = ("weight",)) -> dict[str, str]:
    """Return, for `ModelConfig.in_layers`, what files call a network with a gate whose names begin otherwise.

    Args:
        own: what the decoder's names of it begin with.
        name: what the files' names do.
        kinds: last parts of the tensors' names.
    """
    return {f"{own}.{x}_proj.{kind}": f"{name}.{x}_proj.{kind}" for x in ("gate", "up", "down") for kind in kinds}


def open_weights(config: ModelConfig, *, storage: Storage | None = None, on_read: OnRead = ignore) -> Checkpoint:
    """Open a model's files; tensors have the names that its family has for them.

    Args:
        config: the model's config.
        storage: how matrices are read, in place of the config's own.
        on_read: called with every tensor that was read.

    Raises:
        ModelError: files are missing or damaged.
    """
    return Checkpoint(
        config.path,
        storage=storage or config.storage,
        on_read=on_read,
        renamed=config.renamed if config.path.is_dir() else {},  # GGUF files have the decoder's names
        tower=TOWER in config.raw,
    )


def as_saved(config: ModelConfig) -> ModelConfig:
    """Return the config of a model with what its files say of a tied output layer.

    As in transformers, an output layer that is saved beside the embedding is used where the two differ, and one that
    is saved alone is the embedding too (`safetensors.torch.save_model` keeps only one name of a shared tensor).
    """
    tower = TOWER in config.raw  # its two configs may contradict each other, so the files decide
    if not (config.tie_embeddings or tower) or not config.path.is_dir():
        return config
    try:
        found = _ends(config)
    except ModelError:  # files are missing or damaged: the code that reads weights reports it
        return config
    if not (found.tie_embeddings or tower):
        logger.warning(
            "%s has an output layer of its own, which is used although its config says tie_word_embeddings=true",
            config.path,
        )
    return found


def _ends(config: ModelConfig) -> ModelConfig:
    with open_weights(config, storage="plain") as weights:
        names = weights.names
        if _HEAD not in names:
            return replace(config, tie_embeddings=True)
        embedding = next((name for name in names if name.endswith(_EMBEDDING)), None)
        if embedding is None:
            layer = next((name for name in names if "layers." in name), "model.")
            return replace(config, renamed={**config.renamed, layer.partition("layers.")[0] + _EMBEDDING: _HEAD})
        return config if weights.equal(_HEAD, embedding) else replace(config, tie_embeddings=False)
