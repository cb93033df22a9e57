"""An engine's options resolved for one model: its tokenizer, its longest sequence, its ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from parlay.checkpoints.find import find_model, recommended
from parlay.checkpoints.hub import Hub
from parlay.checkpoints.sampling_defaults import sampling_defaults
from parlay.config import EngineConfig
from parlay.engine.ranks import Ranks
from parlay.errors import ConfigError
from parlay.models.config import ModelConfig
from parlay.text.tokenizer import TextCodec


def text_codec(config: EngineConfig, model: ModelConfig, hub: Hub) -> TextCodec:
    """Return the model's own tokenizer, or the one that the config names.

    Raises:
        ConfigError: it has more tokens than the model.
        ModelError: it cannot be found or read.
    """
    name, revision = config.tokenizer or config.model, config.tokenizer_revision
    if name == config.model and revision in (None, config.revision):
        return TextCodec(model.path)
    codec = TextCodec(find_model(name, replace(hub, revision=revision), weights=False))
    size = codec.tokenizer.get_vocab_size()
    if size > model.vocab_size:
        raise ConfigError(
            f"the tokenizer {name!r} has {size} tokens, more than the {model.vocab_size} of the model "
            f"{config.model!r}; give the tokenizer it was trained with"
        )
    return codec


def end_tokens(model: ModelConfig, codec: TextCodec) -> frozenset[int]:
    """Return the tokens that end an answer: those of the model's configs and, as in vLLM, the tokenizer's own.

    Fine-tunes that end turns with another token than their base model often name it in the tokenizer's config alone.
    """
    own = [] if codec.end is None or codec.end >= model.vocab_size else [codec.end]
    return frozenset((*model.eos_token_ids, *own))


def request_defaults(config: EngineConfig, path: Path) -> dict[str, Any]:
    """Return the sampling parameters of requests that give none: the model's own, and its short name's before them.

    Raises:
        ConfigError, ModelError: as `sampling_defaults` does.
    """
    source = config.generation_config
    return sampling_defaults(path, source) | (recommended(config.model) if source == "auto" else {})


def longest_sequence(config: EngineConfig, limit: int) -> int:
    """Return the longest sequence that is served, of at most `limit` tokens.

    Raises:
        ConfigError: a longer one is asked for.
    """
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise ConfigError(f"max_model_len={config.max_model_len} is beyond the model's {limit} positions; lower it")
    return config.max_model_len


def make_ranks(config: EngineConfig, room: int) -> Ranks:
    """Return the ranks of an engine, not yet started; often it is alone.

    Args:
        config: of the engine.
        room: bytes of the longest row that is exchanged.

    Raises:
        ConfigError: they cannot be.
    """
    size, address = config.ranks, config.rank_address
    if size == 1:
        return Ranks()
    # Imported where they are needed: gloo and Ray take time.
    if config.distributed_executor_backend == "ray":
        from parlay.engine.ray_ranks import RayRanks

        return RayRanks(size)
    if address is not None:
        from parlay.engine.joined_ranks import JoinedRanks

        return JoinedRanks.at(size, address)
    from parlay.engine.local_ranks import LocalRanks

    return LocalRanks(size, room)
