"""From what a user asks of speculation to proposers, and to what decides how much they draft."""

from time import perf_counter

from parlay.config import EngineConfig, SpeculativeConfig
from parlay.config.speculative import PLAIN
from parlay.drafting.ahead import Ahead
from parlay.drafting.controller import Controller
from parlay.drafting.cost import StepCost
from parlay.drafting.drafting import Drafting
from parlay.drafting.hosts import Method
from parlay.drafting.remembered import CostFile, Costs
from parlay.engine.timing import timed_passes
from parlay.errors import ConfigError
from parlay.log import logger
from parlay.proposers.base import DeviceProposer, TargetInfo
from parlay.proposers.select import make_proposer, settle_methods
from parlay.runner.runner import ModelRunner


def find_methods(config: SpeculativeConfig, target: TargetInfo) -> tuple[Method, ...]:
    """Return the proposers that a config asks for, which draft at all; no weights are read.

    Raises:
        ConfigError: an unknown method or option, or options that do not fit.
        ModelError: a model of a proposer's own cannot be found or does not fit.
    """
    found = []
    for one in settle_methods(config, target.hub):
        assert one.method is not None
        proposer = make_proposer(one, target)
        if proposer.default_length:
            found.append(Method(one.method, proposer, one.num_speculative_tokens or proposer.default_length))
        elif config.num_speculative_tokens is not None:
            raise ConfigError(f"method {one.method!r} drafts nothing; leave num_speculative_tokens out")
    return tuple(found)


def device_proposer(methods: tuple[Method, ...]) -> DeviceProposer | None:
    """Return the proposer that guesses on the device, if there is one."""
    return next((m.proposer for m in methods if isinstance(m.proposer, DeviceProposer)), None)


def method_names(methods: tuple[Method, ...]) -> tuple[str, ...]:
    """Return what a request may name: plain decoding, then who is loaded."""
    return (PLAIN, *(method.name for method in methods))


def make_drafting(
    config: SpeculativeConfig,
    methods: tuple[Method, ...],
    engine: EngineConfig,
    runner: ModelRunner,
    num_blocks: int,
    key_share: float,
    file: CostFile,
) -> Drafting:
    """Return what drafts for an engine's requests, once all weights are loaded.

    Args:
        config: what the user asks for.
        methods: what `find_methods` made of it.
        engine: the options of the engine.
        runner: the target's.
        num_blocks: of the cache.
        key_share: see `StepCost`.
        file: where costs are kept from one run to the next.
    """
    controller = None
    if config.lengths != "fixed" and config.method != PLAIN:
        controller = _controller(
            config, methods, StepCost(engine.max_num_batched_tokens, key_share), runner, num_blocks, file
        )
    return Drafting(
        methods,
        predicted_length=config.num_speculative_tokens,
        share_prefixes=engine.enable_prefix_caching,
        controller=controller,
        tree=config.tree == "auto" and controller is not None,
        most_nodes=config.most_nodes,
        remember=config.remember_responses is not False,
        vocab_size=runner.model.config.vocab_size,
    )


def _controller(
    config: SpeculativeConfig,
    methods: tuple[Method, ...],
    cost: StepCost,
    runner: ModelRunner,
    num_blocks: int,
    file: CostFile,
) -> Controller:
    """Return a controller that begins with what was remembered of costs, or else with what is timed now."""
    known = file.read()
    cost.recall(known.steps)
    if not known.steps:
        began = perf_counter()
        passes = timed_passes(runner, num_blocks)
        cost.learn(passes)
        table = ", ".join(f"{rows}: {1e3 * seconds:.2f}" for rows, seconds in passes)
        logger.info("timed passes in %.2f s; ms by rows: %s", perf_counter() - began, table)
    name, length = next(((m.name, m.length) for m in methods if isinstance(m.proposer, DeviceProposer)), ("", 0))
    models = [one.options["model"] for one in (config, *config.several) if "model" in one.options]
    name = f"{name} {next(iter(models), None)}" if name else ""

    def keep(cost: StepCost, ahead: Ahead) -> None:
        own = bool(name and ahead.times)
        file.write(Costs(cost.known, {name: ahead.times} if own else {}, {name: ahead.chances} if own else {}))

    return Controller(
        cost,
        length,
        fair=config.lengths == "latency",
        drafting=known.drafting.get(name),
        chances=known.chances.get(name, ()),
        keep=keep,
    )
