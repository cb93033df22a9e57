"""A further rank of an engine: a process that runs what rank 0 runs, on its own share of the model."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import msgspec
import torch

from parlay import env, log
from parlay.checkpoints.find import find_model
from parlay.checkpoints.hub import Hub
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.engine.machine_memory import check_room
from parlay.engine.timing import MOST_TIMED
from parlay.errors import ConfigError, RankError
from parlay.garbage_collection import raise_threshold
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.log import logger
from parlay.models.config import ModelConfig
from parlay.models.select import describe_as, load_model
from parlay.numerics.digests import start_digest
from parlay.numerics.identify import cases, identify
from parlay.numerics.kernel_choice import choose_kernels
from parlay.parallel.group import Exchange, Group, RankPosition
from parlay.proposers.base import DeviceProposer, Runtime, Share, TargetInfo
from parlay.proposers.select import make_proposer
from parlay.proposers.shared_passes import follow
from parlay.runner.orders import Call, Collect, Forward, Move, Refusal, decode
from parlay.runner.runner import ModelRunner
from parlay.system import stay_on
from parlay.types.cache import NO_CAPACITY, KVCacheDtype, StateCapacity
from parlay.types.storage import LoadFormat, Storage


@dataclass(frozen=True, slots=True)
class Assignment:
    """A rank's input at its start.

    Attributes:
        model, revision: the model's name as given to rank 0; a rank on another machine looks it up there.
        path, storage, quantization, load_format, kv_cache_dtype: how the model is read, see `describe_as`; the path
            is the one on rank 0's machine.
        dtype: dtype of activations and cache.
        max_model_len: longest sequence.
        blocks, block_size: number of cache blocks, and tokens per block.
        device: device to compute on, see `EngineConfig`.
        rank, size, tp_size: position of the rank, see `RankPosition`.
        room: bytes that a rank may send at once, through shared memory.
        stage_bytes: bytes of the longest message to the next stage.
        store: port of rank 0's machine where ranks of several machines find each other.
        timeout: seconds to wait for another rank.
        processors: CPUs that the rank runs on.
        fast: whether ranks add sums, see `Group`.
        taps: layer counts after which a proposer reads hidden states.
        share: the proposer, if the first of the ranks share its layers too.
        states: capacity for states of recurrent layers.
    """

    model: str
    revision: str | None
    path: str
    storage: Storage
    quantization: str | None
    load_format: LoadFormat
    kv_cache_dtype: KVCacheDtype
    dtype: str
    max_model_len: int
    blocks: int
    block_size: int
    device: str
    rank: int = 0
    size: int = 1
    tp_size: int = 1
    room: int = 0
    stage_bytes: int = 0
    store: int = 0
    timeout: float = 0.0
    processors: Sequence[int] = ()
    fast: bool = False
    taps: Sequence[int] = ()
    share: Share | None = None
    states: StateCapacity = NO_CAPACITY

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        model: ModelConfig,
        dtype: torch.dtype,
        max_model_len: int,
        blocks: int,
        room: StateCapacity,
        share: Share | None,
        taps: Sequence[int],
    ) -> "Assignment":
        """Return what is the same for all ranks of an engine."""
        rows = max(config.max_num_batched_tokens + config.max_num_seqs, MOST_TIMED)
        return cls(
            config.model,
            config.revision,
            str(model.path),
            config.storage,
            config.quantization,
            config.load_format,
            config.kv_cache_dtype,
            str(dtype).removeprefix("torch."),
            max_model_len,
            blocks,
            config.block_size,
            config.device,
            size=config.ranks,
            tp_size=config.tensor_parallel_size,
            stage_bytes=rows * (2 + len(taps) + model.extra_intermediates) * model.hidden_size * dtype.itemsize,
            fast=config.tensor_parallel_mode == "fast",
            taps=taps,
            share=share,
            states=room,
        )

    @property
    def position(self) -> RankPosition:
        """Where it is among the ranks."""
        drafters = 0 if self.share is None or self.rank >= self.share.ranks else self.share.ranks
        return RankPosition(self.rank, self.size, self.tp_size, drafters)


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank's answer when its weights are loaded, or why they are not.

    Attributes:
        numerics: facts that its bits depend on, besides the model; see `arithmetic`.
        error: description of what went wrong; empty where nothing did.
    """

    numerics: tuple[str, ...] = ()
    error: str = ""


def arithmetic(kernels: str, bits: str) -> tuple[str, ...]:
    """Return what the bits of a rank's numbers depend on, besides the model; it must be the same on all ranks."""
    return kernels, f"bits-{bits}", f"torch-{torch.__version__}"


def differing(here: Sequence[str], there: Sequence[str]) -> list[tuple[str, str]]:
    """Return what differs between the `arithmetic` of two ranks, as far as both have entries."""
    return [pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]]


def other_bits(who: str, here: Sequence[str], there: Sequence[str]) -> str:
    """Return the sentence that refuses a rank, from the point of view of either side."""
    differ = "; ".join(f"{own} here, {other} there" for own, other in differing(here, there))
    remedy = "give all ranks the same model, kernels, instruction set and torch"
    return f"{who} would compute different bits than rank 0: {differ}; {remedy}"


def join(address: tuple[str, int], key: bytes, model: str | None = None) -> None:
    """Run as a rank of the engine at an address until that engine ends.

    Args:
        address: host and port of rank 0.
        key: secret that both sides know.
        model: path or name of the model on this machine; None uses the name given to rank 0.

    Raises:
        OSError: no engine listens there.
        RankError: another rank is lost.
        ConfigError, ModelError: a fault that stays until something is changed.
    """
    from parlay.engine.joining import connect
    from parlay.parallel.gloo import connect_ranks, connect_store

    connection, host = connect(address, key)
    with ExitStack() as ended, connection:
        try:
            own = msgspec.msgpack.decode(connection.recv_bytes(), type=Assignment)
        except EOFError:
            raise ConnectionError("the engine has ended") from None
        except msgspec.ValidationError:
            raise ConfigError(
                f"the engine at {address[0]}:{address[1]} is another version of parlay; install the same version "
                "on all machines"
            ) from None
        logger.warning("rank %d of %d of %s", own.rank, own.size, own.model)
        store = connect_store(address[0], own.store)
        ways = exchange, ring, drafts = connect_ranks(store, host, own.position, own.timeout)
        for way in ways:
            if way is not None:
                ended.callback(way.close)
        try:
            path = find_model(model or own.model, Hub(revision=own.revision))
            digest, group = start_digest(path), own.position.group(exchange, ring, fast=own.fast)
            tokens, available = own.blocks * own.block_size, env.available_memory()
            check_room(_describe(own, path), getattr(torch, own.dtype), group, tokens, own.states, available)
            runner, numerics = _load(own, path, group)
            drafter = _load_share(own, runner, drafts)
            identity = identify(runner.model.config, own.max_model_len, digest.result())
        except Exception as error:
            connection.send_bytes(msgspec.msgpack.encode(RankReady(error=f"{type(error).__name__}: {error}")))
            raise
        connection.send_bytes(msgspec.msgpack.encode(RankReady((*numerics, identity))))
        execute(connection, runner, drafter)


def main(orders: int, lifeline: int, memory: int, ring: int, drafts: int) -> None:
    """Load a share of a model, then follow orders until there are no more.

    Args:
        orders: descriptor of the connection to rank 0.
        lifeline: descriptor of a pipe that ends with rank 0's process.
        memory, ring, drafts: descriptors of memory for exchanges, see `map_memory`; any, where there is none.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # rank 0 decides when this ends
    Thread(target=_end_with_rank_0, args=(lifeline,), name="parlay-watch", daemon=True).start()
    raise_threshold()
    log.configure()
    with Connection(orders) as connection:
        own = msgspec.msgpack.decode(connection.recv_bytes(), type=Assignment)
        stay_on(frozenset(own.processors))
        from parlay.kernels.exchange import map_memory  # not every installation has it

        files = memory, ring, drafts
        sizes = own.room, own.stage_bytes
        ways = exchange, channel, among_drafters = map_memory(files, own.position, *sizes, own.timeout)
        for file in set(files):
            os.close(file)
        try:
            runner, numerics = _load(own, Path(own.path), own.position.group(exchange, channel, fast=own.fast))
            drafter = _load_share(own, runner, among_drafters)
        except Exception as error:
            connection.send_bytes(msgspec.msgpack.encode(RankReady(error=f"{type(error).__name__}: {error}")))
            return
        connection.send_bytes(msgspec.msgpack.encode(RankReady(numerics)))
        try:
            execute(connection, runner, drafter)
        except (RankError, ConfigError):
            pass  # rank 0 reports it
        except BaseException:
            for way in ways:
                if way is not None:
                    way.abandon()
            logger.exception("rank %d has failed", own.rank)
            raise


def _describe(own: Assignment, path: Path) -> ModelConfig:
    return describe_as(path, own.storage, own.quantization, own.load_format, own.kv_cache_dtype)


def _load(own: Assignment, path: Path, group: Group) -> tuple[ModelRunner, tuple[str, ...]]:
    config = _describe(own, path)
    dtype = getattr(torch, own.dtype)
    torch.set_num_threads(env.threads())
    kernels, invariance = choose_kernels(select_kernels(own.device), cases(config, dtype), env.threads())
    kernels.set_threads(env.threads())
    tune(kernels, env.threads())
    model = load_model(config, dtype, own.max_model_len, kernels, group)
    runner = ModelRunner(model, kernels, own.blocks, own.block_size, group, room=own.states)
    if own.position.stages > 1:  # the states between layers are on the rank that has these layers
        runner.tap(tuple(own.taps))
    return runner, arithmetic(kernels.name, invariance.bits)


def _load_share(own: Assignment, runner: ModelRunner, drafters: Exchange | None) -> DeviceProposer | None:
    """Return the proposer with this rank's share of its layers, on the target's block ids, if it has one."""
    share = own.share
    if share is None or drafters is None:
        return None
    group = own.position.draft_group(drafters)
    target, kernels = runner.model, runner.kernels
    config = SpeculativeConfig(method=share.method, options=share.options)
    proposer = make_proposer(config, TargetInfo(target.config, target.dtype, own.max_model_len, ranks=share.ranks))
    assert isinstance(proposer, DeviceProposer)
    proposer.load(Runtime(kernels, own.blocks, own.block_size, 0, target, runner.cache, own.states, group=group))
    return proposer


def execute(
    connection: "Connection[bytes, bytes]", runner: ModelRunner, drafter: DeviceProposer | None = None
) -> None:
    """Execute rank 0's orders until it closes the connection.

    Args:
        connection: connection to rank 0.
        runner: the target's runner.
        drafter: the proposer, if this rank shares its layers.

    Raises:
        RankError: another rank is lost.
        ConfigError: rank 0 refuses this one.
    """
    hidden, pipeline = torch.empty(0), runner.pipeline
    while True:
        try:
            order = decode(connection.recv_bytes())
        except EOFError:
            return
        if isinstance(order, Call):
            assert drafter is not None
            follow(drafter, order)
        elif isinstance(order, Forward):
            runner.start(order.batch)
            if pipeline.stages == 1:
                hidden = runner.finish()
        elif isinstance(order, Refusal):
            raise ConfigError(order.reason)
        elif isinstance(order, Move):
            runner.move(order)
        elif pipeline.first:  # only the first stage has the final hidden states
            if isinstance(order, Collect):
                hidden = runner.finish()
            else:
                runner.logits(hidden, order.rows)


def _end_with_rank_0(lifeline: int) -> None:
    """End the process when rank 0's does, in any state."""
    os.read(lifeline, 1)
    os._exit(1)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
