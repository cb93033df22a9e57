"""From a speculative config to a proposer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from parlay.checkpoints.detect import DRAFT_MODEL, detect, formats
from parlay.checkpoints.find import ASSETS, find_model, target_of
from parlay.checkpoints.hub import DEFAULT, Hub
from parlay.config import SpeculativeConfig, build
from parlay.config.speculative import AUTO, KEYS, PLAIN, together
from parlay.errors import ConfigError, ModelError, nearest, shown
from parlay.log import logger
from parlay.proposers.base import DeviceProposer, HostProposer, Proposer, TargetInfo
from parlay.proposers.heads import CheckpointOptions
from parlay.registry import Registry

proposers = Registry("parlay.proposers.methods", "speculative method", "proposer", needs=("Proposer", "Options"))
# The options of "auto" that are about the checkpoint, and decide which method it is for.
_MODEL_KEYS = frozenset(option.name for option in fields(CheckpointOptions))


def embedded_configs(length: int | None = None, heads: Path | None = None) -> dict[str, SpeculativeConfig]:
    """Return for every proposer that can serve the embedded target its config, plain decoding first.

    Args:
        length: nodes per draft, for proposers that draft; None takes each one's default.
        heads: a directory of checkpoints by their methods' names, which take the place of embedded ones.
    """
    configs = {}
    for name in sorted(proposers.names(), key=lambda name: name != PLAIN):
        module = proposers.load(name)
        options = embedded_options(name)
        if heads is not None and _reads_checkpoint(name) and (heads / name).is_dir():
            options = {**(options or {}), "model": str(heads / name)}
        if options is None:
            continue
        own = length if module.Proposer.default_length else None
        configs[name] = SpeculativeConfig(method=name, num_speculative_tokens=own, options=options)
    return configs


def embedded_options(method: str) -> dict[str, Any] | None:
    """Return options with which a method serves the embedded target; None while it has no checkpoint for that."""
    usual: dict[str, Any] | None = None if _reads_checkpoint(method) else {}
    found: dict[str, Any] | None = getattr(proposers.load(method), "EMBEDDED", usual)
    return found


def with_bundled(config: SpeculativeConfig, target: TargetInfo) -> SpeculativeConfig:
    """Return a config whose "auto" has what a target brings along too, where no other proposer with weights is given.

    Several ranks would have to share it, which a user has to ask for.
    """
    several = config.several or (config,)
    given = [one for one in several if "model" in one.options or one.method not in (AUTO, *weightless())]
    if not config.automatic or given or target.ranks > 1:
        return config
    own = [replace(several[0], method=name, options={}) for name in bundled_proposers(target)]
    return together([*several, *own[:1]]) if own else config


def bundled_proposers(target: TargetInfo) -> Iterator[str]:
    """Yield the names of the proposers with weights that a target has in its own files."""
    for name in proposers.names():
        try:
            if proposers.load(name).Proposer.comes_with(target):
                yield name
        except ModelError as error:
            logger.warning("the method %r is skipped: %s", name, error)


def with_embedded(config: SpeculativeConfig, target: Path) -> SpeculativeConfig:
    """Return a config whose methods take the checkpoints that come with an embedded target, where none is given."""

    def fill(one: SpeculativeConfig) -> SpeculativeConfig:
        if one.method in (None, AUTO) or one.method not in proposers.names() or "model" in one.options:
            return one
        own = embedded_options(one.method) or {}
        fits = "model" in own and target.parent == ASSETS and target_of(own["model"]) == target.name
        return replace(one, options={**own, **one.options}) if fits else one

    return replace(fill(config), several=tuple(map(fill, config.several)))


def resolve_methods(config: SpeculativeConfig, hub: Hub = DEFAULT) -> tuple[SpeculativeConfig, ...]:
    """Return one config for each proposer that a user's config asks for.

    Args:
        config: the user's config.
        hub: how a checkpoint is fetched, at the config's revision.

    Raises:
        ConfigError: an error of `resolve_method`, an option that none of the proposers has, a proposer that is listed
            twice, or several with weights.
        ModelError: there is no checkpoint, or only other engines can serve it.
    """
    if config.several:
        return _resolve_several(config.several, hub)
    if config.method != AUTO:
        return (resolve_method(config, hub),)
    found: dict[str, Any] = {name: proposers.load(name).Options for name in automatic()}
    if "model" in config.options:
        given = {key: value for key, value in config.options.items() if key in _MODEL_KEYS}
        method = resolve_method(replace(config, method=None, options=given), hub).method
        assert method is not None
        found[method] = proposers.load(method).Options
    keys = {name: {option.name for option in fields(options)} for name, options in found.items()}
    for key in config.options:
        if not any(key in own for own in keys.values()):
            if key in _MODEL_KEYS:
                raise ConfigError(f"{key} is an option of draft models and heads; add 'model', or leave {key} out")
            every = KEYS.union(*keys.values(), _MODEL_KEYS)
            raise ConfigError(f"unknown {AUTO} option {shown(key)}{nearest(key, every)}")
    return tuple(
        replace(config, method=name, options={k: v for k, v in config.options.items() if k in own})
        for name, own in keys.items()
    )


def _resolve_several(configs: Sequence[SpeculativeConfig], hub: Hub) -> tuple[SpeculativeConfig, ...]:
    found: dict[str, SpeculativeConfig] = {}
    named = [config.method for config in configs]
    for config in configs:
        for one in resolve_methods(config, hub):
            assert one.method is not None
            if config.method == AUTO and one.method in named:
                continue  # it is listed with its own options
            if one.method in found or named.count(AUTO) > 1:
                raise ConfigError(f"speculative_config has {config.method!r} twice; leave one of them out")
            found[one.method] = one
    weighty = [name for name in found if name not in weightless()]
    if len(weighty) > 1:
        raise ConfigError(
            f"speculative_config has {weighty[0]!r} and {weighty[1]!r}, but only one proposer with weights can be "
            "loaded; leave one of them out"
        )
    return tuple(found.values())


def automatic() -> list[str]:
    """Return the names of the proposers that "auto" has without being given a checkpoint."""
    return [name for name in weightless() if proposers.load(name).Proposer.joins_auto]


def weightless() -> list[str]:
    """Return the names of the proposers that need no weights."""
    names = (name for name in proposers.names() if proposers.load(name).Proposer.default_length)
    return [name for name in names if issubclass(proposers.load(name).Proposer, HostProposer)]


def resolve_method(config: SpeculativeConfig, hub: Hub = DEFAULT) -> SpeculativeConfig:
    """Return the config of one proposer, whose method is known and is what its checkpoint is for.

    Args:
        config: the user's config, with any method but `AUTO`.
        hub: how a checkpoint is fetched, at the config's revision.

    Raises:
        ConfigError: an unknown method or option, or the checkpoint is for another method than the one that was named.
        ModelError: there is no checkpoint, or only other engines can serve it.
    """
    if config.method is not None:
        _options(config)  # errors in them are reported before anything is looked for
        if not _reads_checkpoint(config.method) or not (
            _needs_checkpoint(config.method) or "model" in config.options
        ):
            return config
    name, revision = config.options.get("model"), config.options.get("revision")
    if not isinstance(name, str) or not isinstance(revision, str | None):
        return replace(config, method=DRAFT_MODEL)  # its options report what is wrong
    path = find_model(name, replace(hub, revision=revision))
    found = detect(path)
    if found is None and path.is_file():
        raise ModelError(
            f"{shown(name)} is neither a GGUF file nor a directory; give the directory of the checkpoint"
        )
    if found is not None and found not in proposers.names():
        supported = ", ".join(method for method in proposers.names() if _reads_checkpoint(method))
        raise ModelError(
            f"{shown(name)} is a draft head for the method {shown(found)}, which is not supported yet; give a "
            f"checkpoint for one of these: {supported}"
        )
    if config.method is None:
        return replace(config, method=found or DRAFT_MODEL)
    if found is not None and config.method == _alias(found):
        return replace(config, method=found)
    whole = found == DRAFT_MODEL and not _needs_checkpoint(config.method)  # a target that is named once more
    if found not in (None, config.method) and not whole:
        raise ConfigError(
            f"{shown(name)} is a checkpoint for the method {found!r}, not {config.method!r}; correct the method or "
            "leave it out"
        )
    return config


@contextmanager
def explain_if_draft_head(model: str, path: Path) -> Iterator[None]:
    """Report that a draft head was given as the target, instead of what it lacks to be a model.

    Args:
        model: the target, as the user gave it.
        path: path at which it was found.

    Raises:
        ModelError: the target is a draft head; raised in place of another one from the body.
    """
    try:
        yield
    except ModelError:
        found = detect(path)
        if found in (None, DRAFT_MODEL):
            raise
        raise ModelError(
            f"{shown(model)} is a draft head for the method {shown(found)}, no model by itself; give its target as "
            'the model, and this as speculative_config {"model": ...}'
        ) from None


def _alias(method: str) -> str | None:
    """Return what a method is called too, by those who also give its checkpoint."""
    return getattr(formats.load(method), "ALSO", None) if method in formats.names() else None


def _reads_checkpoint(method: str) -> bool:
    return any(option.name == "model" for option in fields(proposers.load(method).Options))


def _needs_checkpoint(method: str) -> bool:
    return any(
        option.name == "model" and option.default is MISSING for option in fields(proposers.load(method).Options)
    )


def _options(config: SpeculativeConfig) -> Any:
    assert config.method is not None
    return build(proposers.load(config.method).Options, config.options, f"{config.method} option", KEYS)


def make_proposer(config: SpeculativeConfig, target: TargetInfo) -> Proposer:
    """Find a proposer by name and check its options; no weights are read.

    Args:
        config: a config whose method `resolve_method` has checked.
        target: the target to draft for.

    Raises:
        ConfigError: an unknown method or option, or options that do not fit.
        ModelError: the proposer's model cannot be found or does not fit.
    """
    options = _options(config)
    assert config.method is not None
    proposer: Proposer = proposers.load(config.method).Proposer(options, target)
    if isinstance(options, CheckpointOptions) and options.parallel_drafting and not _in_one_pass(proposer):
        raise ConfigError(
            "parallel_drafting is for draft models whose config has a pard_token and for heads that draft all tokens "
            f"in one pass, but {shown(options.model)} is for the method {config.method!r}; leave it out, or give "
            "another checkpoint"
        )
    return proposer


def _in_one_pass(proposer: Proposer) -> bool:
    return isinstance(proposer, DeviceProposer) and proposer.in_one_pass
