"""From a speculative config to a proposer."""

from parlay.config import SpeculativeConfig, build
from parlay.proposers.base import Proposer, TargetInfo
from parlay.registry import Registry

_HELPERS = frozenset({"base", "prediction", "select", "suffix_tree"})
proposers = Registry("parlay.proposers", "speculative method", hidden=_HELPERS)


def embedded_configs(length: int | None = None) -> dict[str, SpeculativeConfig]:
    """Return for every proposer a config under which it serves the embedded target, plain decoding first.

    Args:
        length: nodes a draft, for proposers that draft; None takes each one's default.
    """
    configs = {}
    for name in sorted(proposers.names(), key=lambda name: name != SpeculativeConfig().method):
        module = proposers.load(name)
        own = length if module.Proposer.default_length else None
        configs[name] = SpeculativeConfig(method=name, num_speculative_tokens=own, options=module.EMBEDDED)
    return configs


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
