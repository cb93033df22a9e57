"""A resolved engine's weights and kernels, loaded on all of its ranks."""

from dataclasses import dataclass, replace

import torch

from parlay.config.verification import DRAWN
from parlay.engine.load_progress import LoadProgress
from parlay.engine.rank import Assignment, arithmetic
from parlay.engine.resolve import ResolvedEngine
from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.models.select import CausalModel, load_embed_and_lm_head, load_model
from parlay.numerics.digests import start_digest
from parlay.numerics.identify import Numerics, cases, check_model, describe_numerics, identify
from parlay.numerics.kernel_choice import choose_kernels
from parlay.proposers.base import Runtime
from parlay.runner.runner import ModelRunner
from parlay.sampling.bound_processor import BoundProcessor
from parlay.types.progress import OnProgress


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """What an engine computes with.

    Attributes:
        kernels, runner: the operations, and the target on its cache.
        processors: logits processors of unfinished requests, by request id, for sampling and drafting.
        numerics: what the bits of a token may depend on besides its request.
    """

    kernels: Kernels
    runner: ModelRunner
    processors: dict[int, BoundProcessor]
    numerics: Numerics


def load(engine: ResolvedEngine, on_progress: OnProgress) -> LoadedEngine:
    """Choose the kernels, start the other ranks, and read the weights of the target and its proposers.

    Args:
        engine: the engine to load.
        on_progress: function called with how far the weights are loaded; the last time when all are.

    Raises:
        ModelError: weights do not fit their config.
        RankError, ConfigError: another rank cannot start, or computes with other bits.
    """
    config, model, dtype, ranks = engine.config, engine.model, engine.dtype, engine.ranks
    threads, blocks = ranks.threads, engine.num_blocks + engine.scratch
    digest = start_digest(engine.path, engine.codec.path)
    progress = LoadProgress(config, engine.machine.weights, on_progress)
    torch.set_num_threads(threads)
    # A draft model of another vocabulary may have more tokens of the same text.
    own = max((method.proposer.cache.slots for method in engine.methods if method.proposer.cache), default=1)
    selected = select_kernels(config.device, longest=engine.max_model_len * own)
    kernels, invariance = choose_kernels(selected, cases(model, dtype), threads)
    kernels.set_threads(threads)
    tune(kernels, threads)
    taps, share = (engine.drafter.taps, engine.drafter.share) if engine.drafter else ((), None)
    ranks.start(Assignment.of(config, model, dtype, engine.max_model_len, blocks, engine.allocated, share, taps))
    with progress.target(engine.machine.weights - engine.draft_bytes) as on_read, kernels.device_context():
        target = load_model(model, dtype, engine.max_model_len, kernels, ranks.group, on_read)
    identity = identify(model, engine.max_model_len, digest.result())
    invariance = check_model(target, identity, kernels, invariance, threads)
    runner = ModelRunner(target, kernels, blocks, config.block_size, ranks.group, ranks.on_order, engine.allocated)
    loaded = LoadedEngine(
        kernels,
        runner,
        {},
        replace(
            describe_numerics(identity, model, dtype, kernels.name, invariance),
            verification=engine.speculative.verification,
            summing=ranks.group.size if ranks.group.fast else 1,
        ),
    )
    with kernels.device_context():
        ends = load_embed_and_lm_head(model, dtype, kernels) if engine.whole_ends else target
    _load_proposers(engine, loaded, ends, progress)
    ranks.wait((*arithmetic(kernels.name, invariance.bits), identity))
    return loaded


def _load_proposers(engine: ResolvedEngine, loaded: LoadedEngine, ends: CausalModel, progress: LoadProgress) -> None:
    config, ranks = engine.config, engine.ranks
    # A proposer that processes every row of the target runs one more token for each request that emits.
    max_rows = config.max_num_batched_tokens + config.max_num_seqs
    for method in engine.methods:
        with progress.proposer(method) as on_read, loaded.kernels.device_context():
            runtime = Runtime(
                kernels=loaded.kernels,
                num_blocks=engine.num_blocks,
                block_size=config.block_size,
                max_rows=max_rows,
                target=ends,
                cache=loaded.runner.cache,
                room=engine.room,
                on_read=on_read,
                keep_distributions=engine.speculative.verification in DRAWN,
                processors=loaded.processors,
                group=ranks.draft_group,
                broadcast=ranks.on_call,
            )
            method.proposer.load(runtime)
