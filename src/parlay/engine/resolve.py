"""An engine's options resolved for its model: everything that is known before any weights are read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from parlay.checkpoints.find import find_model, recommended
from parlay.checkpoints.hub import Hub
from parlay.checkpoints.sampling_defaults import sampling_defaults
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.device import available_memory, find_device
from parlay.drafting.host_drafts import LoadedProposer
from parlay.engine.machine_memory import MachineMemory, count_on_all, memory_by_machine
from parlay.engine.ranks import Ranks
from parlay.engine.speculation import device_proposer, find_methods
from parlay.errors import ConfigError
from parlay.models.config import ModelConfig
from parlay.models.select import check_ranks, check_weights, describe_as, resolve_dtype
from parlay.proposers.base import DeviceProposer, TargetInfo
from parlay.proposers.draft_recurrent_states import DRAFT_PLACES
from parlay.proposers.draft_slots import scratch_blocks
from parlay.proposers.select import explain_if_draft_head
from parlay.runner.footprint import embed_and_lm_head_bytes
from parlay.text.tokenizer import TextCodec
from parlay.types.cache import StateCapacity


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedEngine:
    """What an engine is going to be.

    Attributes:
        config, speculative: the user's options.
        path: path of the model's files.
        model, dtype, max_model_len: the model's config, the dtype of activations and cache, the longest sequence.
        codec: the tokenizer.
        methods: the proposers.
        drafter: the proposer that drafts on the device, if there is one.
        whole_ends: whether rank 0 loads the embedding and the output layer whole, for a proposer that runs them.
        draft_bytes: bytes that a machine holds beside the target's weights.
        machine: memory that rank 0's machine has to hold.
        num_blocks, scratch: number of cache blocks, and of further blocks in which drafts branch.
        room: capacity for states of recurrent layers.
        ranks: the processes, not yet started.
    """

    config: EngineConfig
    speculative: SpeculativeConfig
    path: Path
    model: ModelConfig
    dtype: torch.dtype
    max_model_len: int
    codec: TextCodec
    methods: tuple[LoadedProposer, ...]
    drafter: DeviceProposer | None
    whole_ends: bool
    draft_bytes: int
    machine: MachineMemory
    num_blocks: int
    room: StateCapacity
    scratch: int
    ranks: Ranks

    @property
    def allocated(self) -> StateCapacity:
        """Room for states, with that behind it in which a proposer drafts that works in the target's cache."""
        return self.room._replace(places=self.room.places + DRAFT_PLACES) if self.scratch else self.room


def resolve(config: EngineConfig, speculative: SpeculativeConfig) -> ResolvedEngine:
    """Find and check everything; no weights are read.

    Raises:
        ConfigError: options that are unknown, out of range or do not fit together.
        ModelError: a model cannot be found, read or served.
        CapacityError: memory does not suffice for one sequence.
    """
    find_device(config.device)
    hub = Hub(token=config.hf_token, cache_dir=config.download_dir)
    path = find_model(config.model, replace(hub, revision=config.revision))
    with explain_if_draft_head(config.model, path):
        model = describe_as(path, config.storage, config.quantization, config.load_format, config.kv_cache_dtype)
        dtype = resolve_dtype(config.dtype, model)
        check_ranks(model, *config.split)
        max_model_len = longest_sequence(config, model.max_position)
        codec = text_codec(config, model, hub)
        if config.device != "cpu" and model.library_model is not None:
            raise ConfigError(
                f"device={config.device!r} is for parlay's own model families, and {path} is computed by "
                f"{model.library_model.library}; leave device at 'cpu'"
            )
        target = TargetInfo(model, dtype, max_model_len, hub, *config.split, tokenizer=codec.path)
        methods = find_methods(speculative, target)
        drafter = device_proposer(methods)
        whole_ends = config.tensor_parallel_size > 1 and any(m.proposer.uses_embed_or_lm_head for m in methods)
        draft_bytes = sum(m.proposer.bytes_on(config.machines) for m in methods)
        draft_bytes += embed_and_lm_head_bytes(model, dtype) if whole_ends else 0
        drafts = MachineMemory(draft_bytes, tuple(m.proposer.cache for m in methods if m.proposer.cache))
        share = drafter.share if drafter else None
        machines = memory_by_machine(config, model, dtype, drafts, share.ranks if share else 1)
        ranks = make_ranks(config, 4 * model.vocab_size)
        num_blocks, room = count_on_all(
            config, machines, max_model_len, available_memory(config.device) // ranks.memory_shares
        )
        check_weights(model)
    return ResolvedEngine(
        config=config,
        speculative=speculative,
        path=path,
        model=model,
        dtype=dtype,
        max_model_len=max_model_len,
        codec=codec,
        methods=methods,
        drafter=drafter,
        whole_ends=whole_ends,
        draft_bytes=draft_bytes,
        machine=machines[0],
        num_blocks=num_blocks,
        room=room,
        scratch=scratch_blocks(config.block_size) if any(m.proposer.uses_target_cache for m in methods) else 0,
        ranks=ranks,
    )


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
        ConfigError, ModelError: the model's defaults cannot be read, see `sampling_defaults`.
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
    """Return the ranks of an engine, not yet started; often there is only one.

    Args:
        config: the engine's options.
        room: bytes of the longest row that is exchanged.

    Raises:
        ConfigError: the ranks cannot be started as asked.
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
