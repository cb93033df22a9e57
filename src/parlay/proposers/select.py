"""From a speculative config to a proposer."""

from parlay.config import SpeculativeConfig, build
from parlay.proposers.base import Proposer, TargetInfo
from parlay.registry import Registry

proposers = Registry("parlay.proposers", "speculative method", hidden=frozenset({"base", "select"}))


def embedded_configs() -> dict[str, SpeculativeConfig]:
    """Return for every proposer a config under which it serves the embedded target, plain decoding first."""
    names = sorted(proposers.names(), key=lambda name: name != SpeculativeConfig().method)
    return {name: SpeculativeConfig(method=name, options=proposers.load(name).EMBEDDED) for name in names}


def make_proposer(config: SpeculativeConfig, target: TargetInfo) -> Proposer:
    """Find a proposer by name and check its options; no weights are read.

    Raises:
        ConfigError: an unknown method or option, or options that do not fit.
        ModelError: a model of the proposer's own cannot be found or does not fit.
    """
    module = proposers.load(config.method)
    options = build(module.Options, config.options, f"{config.method} option")
    proposer: Proposer = module.Proposer(options, target)
    return proposer
