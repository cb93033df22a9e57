"""From a user's speculative config to proposers, and to what decides how much they draft."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from parlay.config import EngineConfig, SpeculativeConfig
from parlay.config.speculative import AUTO, PLAIN, TreeShape
from parlay.config.verification import BLOCK, DRAWN
from parlay.drafting.belief import Belief
from parlay.drafting.cost import StepCost
from parlay.drafting.cost_file import CostFile, Costs
from parlay.drafting.device_length import DeviceLength
from parlay.drafting.draft_cost import DraftCost
from parlay.drafting.drafting import Drafting
from parlay.drafting.host_drafts import LoadedProposer
from parlay.drafting.policy import Policy
from parlay.engine.timing import timed_passes
from parlay.errors import ConfigError, RequestError, nearest
from parlay.log import logger
from parlay.proposers.base import DeviceProposer, Proposer, TargetInfo
from parlay.proposers.select import make_proposer, resolve_methods, with_bundled, with_embedded
from parlay.runner.runner import ModelRunner
from parlay.types.params import SpeculationOverride

_NODES = 16  # most nodes of a draft with branches, by default


def find_methods(config: SpeculativeConfig, target: TargetInfo) -> tuple[LoadedProposer, ...]:
    """Return the proposers that a config asks for, without those that never draft; no weights are read.

    Raises:
        ConfigError: an unknown method or option, or options that do not fit.
        ModelError: a proposer's model cannot be found or does not fit.
    """
    found: list[LoadedProposer] = []
    config = with_bundled(with_embedded(config, target.config.path), target)
    for one in resolve_methods(config, target.hub):
        assert one.method is not None
        proposer = make_proposer(one, target)
        if proposer.default_length:
            found.append(_method(one, proposer, target))
        elif config.num_speculative_tokens is not None:
            raise ConfigError(f"method {one.method!r} drafts nothing; leave num_speculative_tokens out")
    _check_verification(config, found)
    if isinstance(config.tree, TreeShape) and device_proposer(tuple(found)) is None:
        raise ConfigError(
            "tree has a shape, which needs a method with weights; set tree to 'auto' or 'off', or name such a method"
        )
    return tuple(found)


def _check_verification(config: SpeculativeConfig, found: Sequence[LoadedProposer]) -> None:
    """Check that drafts can be verified as asked.

    Raises:
        ConfigError: they cannot.
    """
    option = f"verification={config.verification!r}"
    if config.verification not in DRAWN or not found:
        return
    names = ", ".join(repr(method.name) for method in found)
    if not all(isinstance(one.proposer, DeviceProposer) and one.proposer.draws for one in found):
        raise ConfigError(
            f"{option} needs draft tokens sampled from a known distribution, which {names} does not give; name one "
            "method with weights, such as a draft model, or leave verification out"
        )
    listing = [one.proposer for one in found if isinstance(one.proposer, DeviceProposer) and one.proposer.choices]
    if listing:
        raise ConfigError(
            f"{option} does not take branches that are listed by rank; leave out {listing[0].choices_option}"
        )
    if config.verification == BLOCK and isinstance(config.tree, TreeShape):
        raise ConfigError(f"{option} takes chains, not trees; leave tree out, or write verification='rejection'")


def _method(config: SpeculativeConfig, proposer: Proposer, target: TargetInfo) -> LoadedProposer:
    """Return a proposer with its draft limits.

    Raises:
        ConfigError: its tree does not fit it, the budget or the context.
    """
    assert config.method is not None
    most, tree, name = config.num_speculative_tokens, config.tree, config.method
    length = most or proposer.default_length
    chains = tree == "off" or config.verification == BLOCK or (tree == "auto" and config.lengths == "fixed")
    if not isinstance(proposer, DeviceProposer):
        return LoadedProposer(name, proposer, length, nodes=0 if chains else most or _NODES)
    if (
        proposer.max_draft_tokens is not None
        and length > proposer.max_draft_tokens
        and not isinstance(tree, TreeShape)
    ):
        raise ConfigError(
            f"num_speculative_tokens={most} is more than the {proposer.max_draft_tokens} tokens that {name!r} "
            "drafts at once; lower it"
        )
    choices = proposer.choices
    if choices is not None:
        if tree != "auto":
            raise ConfigError(f"tree and {proposer.choices_option} contradict each other; give one of them")
        if most is not None and most < len(choices):
            raise ConfigError(
                f"{proposer.choices_option} lists {len(choices)} branches, more than num_speculative_tokens={most}; "
                "raise num_speculative_tokens, or leave it out"
            )
        depth, width = max(map(len, choices)), 1 + max(map(max, choices))
        return LoadedProposer(name, proposer, depth, max(width, 2), len(choices), True)
    if chains:
        return LoadedProposer(name, proposer, length)
    nodes = most or _NODES
    if not isinstance(tree, TreeShape):
        return LoadedProposer(name, proposer, length, TreeShape().width, nodes)
    depth = tree.depth or min(proposer.default_length, nodes)
    for limit, what in (
        (nodes, f"num_speculative_tokens={nodes}"),
        (target.max_model_len - 1, f"max_model_len={target.max_model_len}"),
        (proposer.max_depth or depth, f"the {proposer.max_depth} tokens that {name!r} can draft in a row"),
    ):
        if depth > limit:
            raise ConfigError(f"tree depth {depth} exceeds {what}; lower the depth")
    return LoadedProposer(name, proposer, depth, tree.width, nodes, True)


def device_proposer(methods: tuple[LoadedProposer, ...]) -> DeviceProposer | None:
    """Return the proposer that drafts on the device, if there is one."""
    return next((m.proposer for m in methods if isinstance(m.proposer, DeviceProposer)), None)


def method_names(methods: tuple[LoadedProposer, ...]) -> tuple[str, ...]:
    """Return what a request may name: plain decoding, then the loaded methods."""
    return (PLAIN, *(method.name for method in methods))


def resolve_override(
    override: SpeculationOverride | Mapping[str, Any] | None, methods: tuple[str, ...], *, automatic: bool
) -> SpeculationOverride | None:
    """Return a request's override of speculation as the engine applies it.

    Args:
        override: the override in the request's parameters.
        methods: names that a request may give.
        automatic: whether the engine was started with `auto`, which a request may name too: it changes nothing.

    Raises:
        RequestError: it names a method that is not loaded.
    """
    assert override is None or isinstance(override, SpeculationOverride)
    if override is None or override.method in (None, *methods):
        return override
    if override.method == AUTO and automatic:
        return replace(override, method=None)
    raise RequestError(
        f"the speculative method {override.method!r} is not loaded{nearest(str(override.method), methods)}; "
        "name it in speculative_config when the engine is started",
        param="speculative",
    )


def make_drafting(
    config: SpeculativeConfig,
    methods: tuple[LoadedProposer, ...],
    engine: EngineConfig,
    runner: ModelRunner,
    num_blocks: int,
    key_share: float,
    file: CostFile,
) -> Drafting:
    """Return the drafting of an engine's requests, once all weights are loaded.

    Args:
        config: the user's speculative config.
        methods: the proposers that `find_methods` has returned.
        engine: the engine's options.
        runner: the target's runner.
        num_blocks: number of cache blocks.
        key_share: bytes of a token's keys and values, as a share of the weights', see `StepCost`.
        file: file that keeps costs from one run to the next.
    """
    policy = None
    if config.lengths != "fixed" and config.method != PLAIN:
        cost = StepCost(engine.max_num_batched_tokens, key_share)
        policy = _policy(config, methods, cost, runner, num_blocks, file)
    return Drafting(
        methods,
        predicted_length=config.num_speculative_tokens,
        share_prefixes=engine.enable_prefix_caching,
        policy=policy,
        tree=isinstance(config.tree, TreeShape) or (config.tree == "auto" and policy is not None),
        most_nodes=config.most_nodes,
        longest_text=config.max_model_len,
        remember=config.remember_responses is not False,
        vocab_size=runner.model.config.vocab_size,
    )


def _identity(model: object) -> str:
    """Return what a proposer's model is called however its path was typed."""
    path = Path(str(model)).expanduser()
    return str(path.resolve() if path.exists() else model)


def _policy(
    config: SpeculativeConfig,
    methods: tuple[LoadedProposer, ...],
    cost: StepCost,
    runner: ModelRunner,
    num_blocks: int,
    file: CostFile,
) -> Policy:
    """Return a policy that starts from what an earlier run has learnt, or else from passes that are timed now."""
    known = file.read()
    cost.recall(known.steps)
    if not known.steps:
        began = perf_counter()
        passes = timed_passes(runner, num_blocks)
        cost.learn(passes)
        file.write(Costs(cost.known))  # steps soon give better times, but the next run may be as short as this one
        table = ", ".join(f"{rows}: {1e3 * seconds:.2f}" for rows, seconds in passes)
        logger.info("timed passes in %.2f s; ms by rows: %s", perf_counter() - began, table)
    name = next((m.name for m in methods if isinstance(m.proposer, DeviceProposer)), "")
    models = [one.options["model"] for one in (config, *config.several) if "model" in one.options]
    model = f"{name} {_identity(next(iter(models), None))}"  # in the file, where a name may have several models
    belief = Belief({name: known.acceptance[model]} if model in known.acceptance else {})
    device_length = DeviceLength(name, cost, belief, DraftCost(known.drafting.get(model))) if name else None

    def keep(policy: Policy) -> None:
        saved = Costs(policy.cost.known)
        if policy.device_length is not None and policy.device_length.cost.timed:
            saved.drafting[model], saved.acceptance[model] = (
                policy.device_length.cost.known,
                policy.device_length.belief.known,
            )
        file.write(saved)

    return Policy(cost, belief, device_length, fair=config.lengths == "latency", keep=keep)
