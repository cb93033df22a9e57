"""A further rank of a tensor-parallel engine: a process that runs what rank 0 runs, on its own share of the model."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import msgspec
import torch

from parlay import env, log
from parlay.checkpoints.find import find_model
from parlay.checkpoints.hub import Hub
from parlay.config import EngineConfig
from parlay.engine.loads import check_room
from parlay.errors import ConfigError, RankError
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.log import logger
from parlay.models.config import ModelConfig
from parlay.models.select import describe_as, describe_model, load_model
from parlay.numerics.digests import start_digest
from parlay.numerics.identify import cases, identify
from parlay.numerics.trust import choose_kernels
from parlay.parallel.group import Group
from parlay.parallel.numa import stay_on
from parlay.proposers.base import Share
from parlay.proposers.places import scratch_blocks
from parlay.runner.orders import Forward, Logits, Refusal, Score, decode
from parlay.runner.runner import ModelRunner
from parlay.types.storage import LoadFormat, Storage


@dataclass(frozen=True, slots=True)
class Assignment:
    """A rank's input at its start.

    Attributes:
        model, revision: rank 0's user's name of the model; a rank on another machine finds it there.
        path, storage, quantization, load_format: of the model, see `describe_as`; the path is rank 0's.
        dtype: of activations and cache.
        max_model_len: longest sequence.
        blocks, block_size: of the cache.
        device: as in `EngineConfig`.
        rank, size: its index, and the number of ranks.
        room: bytes that a rank may send at once, through shared memory.
        store: port of rank 0's machine where ranks of several machines find each other.
        patience: seconds to wait for another rank.
        processors: to run on.
        fast, stages: see `Group`.
        taps: after how many layers states are read by a proposer; of stages.
        share: the draft model, if the first of the ranks share that too.
    """

    model: str
    revision: str | None
    path: str
    storage: Storage
    quantization: str | None
    load_format: LoadFormat
    dtype: str
    max_model_len: int
    blocks: int
    block_size: int
    device: str
    rank: int = 0
    size: int = 1
    room: int = 0
    store: int = 0
    patience: float = 0.0
    processors: Sequence[int] = ()
    fast: bool = False
    stages: bool = False
    taps: Sequence[int] = ()
    share: Share | None = None

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        path: Path,
        dtype: torch.dtype,
        max_model_len: int,
        blocks: int,
        share: Share | None,
        taps: Sequence[int],
    ) -> "Assignment":
        """Return what is the same for all ranks of an engine."""
        return cls(
            config.model,
            config.revision,
            str(path),
            config.storage,
            config.quantization,
            config.load_format,
            str(dtype).removeprefix("torch."),
            max_model_len,
            blocks,
            config.block_size,
            config.device,
            fast=config.tensor_parallel_mode == "fast",
            stages=config.pipeline_parallel_size > 1,
            taps=taps,
            share=share,
        )

    @property
    def shares(self) -> int:
        """Ranks that share the draft model, if this one does; otherwise 0."""
        return 0 if self.share is None or self.rank >= self.share.ranks else self.share.ranks


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank's answer when its weights are loaded, or why they are not.

    Attributes:
        numerics: what its bits depend on, besides the model; see `arithmetic`.
        error: what went wrong.
    """

    numerics: tuple[str, ...] = ()
    error: str = ""


def arithmetic(kernels: str, bits: str) -> tuple[str, ...]:
    """Return what the bits of a rank's numbers depend on, besides the model; it must be the same on all ranks."""
    return kernels, f"bits-{bits}", f"torch-{torch.__version__}"


def differing(here: Sequence[str], there: Sequence[str]) -> list[tuple[str, str]]:
    """Return what differs between the `arithmetic` of two ranks; where one says less, only that is compared."""
    return [pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]]


def other_bits(who: str, here: Sequence[str], there: Sequence[str]) -> str:
    """Return the sentence that refuses a rank, from the point of view of either side."""
    differ = "; ".join(f"{own} here, {other} there" for own, other in differing(here, there))
    remedy = "give all ranks the same model, kernels, instruction set and torch"
    return f"{who} would compute other bits than rank 0: {differ}; {remedy}"


def join(address: tuple[str, int], key: bytes, model: str | None = None) -> None:
    """Be a rank of the engine at an address, until that engine ends.

    Args:
        address: of rank 0.
        key: the one that both know.
        model: where the weights are on this machine; None uses the name that rank 0's user gave.

    Raises:
        OSError: no engine listens there.
        RankError: another rank is lost.
        ConfigError, ModelError: what is wrong, and stays so until something is changed; rank 0 knows it too.
    """
    from parlay.engine.joining import connect
    from parlay.parallel.gloo import Gloo, drafts, reach_store

    connection, host = connect(address, key)
    with connection:
        try:
            own = msgspec.msgpack.decode(connection.recv_bytes(), type=Assignment)
        except EOFError:
            raise ConnectionError("the engine has ended") from None
        except msgspec.ValidationError:
            raise ConfigError(
                f"the engine at {address[0]}:{address[1]} speaks as another version of parlay does; install the same "
                "on all machines"
            ) from None
        logger.warning("rank %d of %d of %s", own.rank, own.size, own.model)
        store = reach_store(address[0], own.store)
        exchange = Gloo(store, own.rank, own.size, host, own.patience)
        draft = Gloo(drafts(store), own.rank, own.shares, host, own.patience) if own.shares else None
        try:
            path = find_model(model or own.model, Hub(revision=own.revision))
            digest, group = start_digest(path), Group(own.rank, own.size, exchange, own.fast, own.stages)
            tokens, available = own.blocks * own.block_size, env.available_memory()
            check_room(_describe(own, path), getattr(torch, own.dtype), group, tokens, available)
            runner, numerics = _load(own, path, group)
            drafter = None
            if own.share is not None and draft is not None:
                if not own.share.copied:
                    path = find_model(own.share.model, Hub(revision=own.share.revision))
                drafter = _load_draft(own, own.share, path, runner, Group(own.rank, own.shares, draft))
            identity = identify(runner.model.config, own.max_model_len, digest.result())
        except Exception as error:
            connection.send_bytes(msgspec.msgpack.encode(Ready(error=f"{type(error).__name__}: {error}")))
            raise
        connection.send_bytes(msgspec.msgpack.encode(Ready((*numerics, identity))))
        obey(connection, runner, drafter)


def main(orders: int, lifeline: int, memory: int, drafts: int) -> None:
    """Load a share of a model, then follow orders until there are no more.

    Args:
        orders: descriptor of the connection to rank 0.
        lifeline: descriptor of a pipe that ends with rank 0's process.
        memory: descriptor of the memory for exchanges.
        drafts: descriptor of that of the draft model, if this rank shares it.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # rank 0 decides when this ends
    Thread(target=_end_with_rank_0, args=(lifeline,), name="parlay-watch", daemon=True).start()
    log.configure()
    with Connection(orders) as connection:
        own = msgspec.msgpack.decode(connection.recv_bytes(), type=Assignment)
        stay_on(frozenset(own.processors))
        from parlay.kernels.exchange import SharedMemory  # which not every installation has

        exchange = SharedMemory(memory, own.rank, own.size, own.room, own.patience)
        draft = SharedMemory(drafts, own.rank, own.shares, own.room, own.patience) if own.shares else None
        for file in {memory, drafts}:
            os.close(file)
        try:
            runner, numerics = _load(own, Path(own.path), Group(own.rank, own.size, exchange, own.fast, own.stages))
            drafter = None
            if own.share is not None and draft is not None:
                group = Group(own.rank, own.shares, draft)
                drafter = _load_draft(own, own.share, Path(own.share.path), runner, group)
        except Exception as error:
            connection.send_bytes(msgspec.msgpack.encode(Ready(error=f"{type(error).__name__}: {error}")))
            return
        connection.send_bytes(msgspec.msgpack.encode(Ready(numerics)))
        try:
            obey(connection, runner, drafter)
        except (RankError, ConfigError):
            pass  # rank 0 knows
        except BaseException:
            exchange.abandon()
            if draft is not None:
                draft.abandon()
            logger.exception("rank %d has failed", own.rank)
            raise


def _describe(own: Assignment, path: Path) -> ModelConfig:
    return describe_as(path, own.storage, own.quantization, own.load_format)


def _load(own: Assignment, path: Path, group: Group) -> tuple[ModelRunner, tuple[str, ...]]:
    config = _describe(own, path)
    dtype = getattr(torch, own.dtype)
    torch.set_num_threads(env.threads())
    kernels, trust = choose_kernels(select_kernels(own.device), cases(config, dtype), env.threads())
    kernels.set_threads(env.threads())
    tune(kernels, env.threads())
    model = load_model(config, dtype, own.max_model_len, kernels, group)
    runner = ModelRunner(model, kernels, own.blocks, own.block_size, group)
    if own.stages:  # the states between layers are on the rank that has these layers
        runner.tap(tuple(own.taps))
    return runner, arithmetic(kernels.name, trust.bits)


def _load_draft(own: Assignment, share: Share, path: Path, target: ModelRunner, group: Group) -> ModelRunner:
    """Return what runs this rank's share of the draft model, on the target's block ids."""
    config = replace(target.model.config if share.copied else describe_model(str(path)), storage=share.storage)
    model = load_model(config, target.model.dtype, own.max_model_len, target.kernels, group)
    blocks = target.cache if share.copied else own.blocks + scratch_blocks(own.block_size)
    return ModelRunner(model, target.kernels, blocks, own.block_size, group)


def obey(connection: "Connection[bytes, bytes]", runner: ModelRunner, drafter: ModelRunner | None = None) -> None:
    """Do what rank 0 does, until it closes the connection.

    Args:
        connection: to rank 0.
        runner: of the target.
        drafter: of the draft model, if this rank shares it.

    Raises:
        RankError: another rank is lost.
        ConfigError: rank 0 refuses this one.
    """
    hidden = torch.empty(0)
    while True:
        try:
            order = decode(connection.recv_bytes())
        except EOFError:
            return
        if isinstance(order, Score) or (isinstance(order, Forward) and order.draft):
            assert drafter is not None
            _draft(drafter, order)
        elif isinstance(order, Forward):
            hidden = runner.forward(order.batch)
        elif isinstance(order, Logits):
            runner.logits(hidden, order.rows)
        elif isinstance(order, Refusal):
            raise ConfigError(order.reason)
        else:
            runner.move(order)


def _draft(drafter: ModelRunner, order: Forward | Score) -> None:
    if isinstance(order, Score):
        drafter.model.logits(order.tensor(drafter.model.dtype))
    elif order.once:
        drafter.forward_here(order.batch)
    else:
        drafter.forward(order.batch)


def _end_with_rank_0(lifeline: int) -> None:
    """End the process when rank 0's does, in any state."""
    os.read(lifeline, 1)
    os._exit(1)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
