"""Which proposers a benchmark compares on a target, and with what weights."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parlay.bench.workloads import Prefix, has_embedded_vocabulary
from parlay.checkpoints.find import find_model
from parlay.config import SpeculativeConfig
from parlay.config.engine import Device
from parlay.config.speculative import AUTO, PLAIN, TreeShape, together
from parlay.config.verification import COUPLED
from parlay.errors import CapacityError, ConfigError, ModelError, nearest, shown
from parlay.llm import LLM
from parlay.log import logger
from parlay.models.select import describe_model, resolve_dtype
from parlay.proposers.base import TargetInfo
from parlay.proposers.select import bundled_proposers, embedded_configs, make_proposer, proposers, resolve_method
from parlay.text.tokenizer import TextCodec
from parlay.types.output import CompletionOutput
from parlay.types.params import SamplingParams

FOLDER = "heads"  # in a model's directory; each head in it is named after its method
_AND = "+"  # between methods whose drafts become one


def contenders(
    model: str, length: int | None, methods: Collection[str] = (), drafts: Mapping[str, str] | None = None
) -> dict[str, SpeculativeConfig]:
    """Return each proposer's config for a target, plain decoding first.

    A checkpoint in the target's folder `heads`, named after its method, replaces the embedded one, and one in
    `drafts` replaces either. What the target has in its own files counts too. An embedded one that is for another
    target is left out, with a log message. Methods joined by a plus sign, `suffix+eagle3`, draft together;
    `auto+eagle3` is `AUTO` and the latter.

    Args:
        model: name, directory or file of the target.
        length: most draft tokens per request and step, for proposers that draft; None takes each one's default.
        methods: only these, in this order; none takes all proposers, and before them `AUTO` and `AUTO` with each of
            `drafts`.
        drafts: checkpoints by their methods' names.

    Raises:
        ConfigError: an unknown method, one without a checkpoint for this target, or some that cannot draft together.
        ModelError: the target cannot be found or read, or a checkpoint in its folder or in `drafts` does not fit.
    """
    drafts = drafts or {}
    known = [*proposers.names(), AUTO]
    wanted = [part for name in methods for part in name.split(_AND)]
    for name in (*wanted, *drafts):
        if name not in known:
            raise ConfigError(f"unknown method {shown(name)}{nearest(name, known)}")
    config = describe_model(model)
    target = TargetInfo(config, resolve_dtype("auto", config), config.max_position, tokenizer=config.path)
    path = find_model(model)
    heads = path / FOLDER
    found = embedded_configs(length, heads)
    for name in bundled_proposers(target):
        found[name] = SpeculativeConfig(method=name, num_speculative_tokens=length)
    found |= {
        name: SpeculativeConfig(method=name, num_speculative_tokens=length, options={"model": checkpoint})
        for name, checkpoint in drafts.items()
    }
    usable = {}
    for name, how in found.items():
        if methods and name not in (PLAIN, *wanted):
            continue
        try:
            make_proposer(resolve_method(how) if name in drafts else how, target)
        except ModelError as error:
            if name in drafts or (heads / name).is_dir():
                raise
            _leave_out(name, error, path)
            continue
        usable[name] = how
    if not methods:
        methods = (AUTO, *(f"{AUTO}{_AND}{name}" for name in drafts), *usable)
    for name in wanted:
        if name != AUTO and name not in usable:
            raise ConfigError(
                f"the method {name!r} has no checkpoint for {shown(model)}; give one with --draft {name}=PATH"
            )
    usable[AUTO] = automatic(length)
    return {name: _combined(name, usable) for name in dict.fromkeys((PLAIN, *methods))}


def budgeted(
    model: str, budgets: Sequence[int], methods: Collection[str] = (), drafts: Mapping[str, str] | None = None
) -> dict[str, SpeculativeConfig]:
    """Return `contenders` once with each budget by a label of both, plain decoding once and first.

    Args:
        model: the target, see `contenders`.
        budgets: most draft tokens per request and step, for proposers that draft; none takes each one's default.
        methods: the methods to take, see `contenders`.
        drafts: checkpoints by their methods' names.

    Raises:
        ConfigError, ModelError: see `contenders`.
    """
    found = contenders(model, budgets[0] if budgets else None, methods, drafts)
    chosen = {}
    for name, how in found.items():
        if how.num_speculative_tokens is None:  # it drafts nothing, or its default length
            chosen[name] = how
        else:
            chosen |= {f"{name} {budget}": _with(how, num_speculative_tokens=budget) for budget in budgets}
    return chosen


def verified(chosen: Mapping[str, SpeculativeConfig], verifications: Sequence[str]) -> dict[str, SpeculativeConfig]:
    """Return contenders with each kind of verification by a label of both; those without weights stay.

    Args:
        chosen: what `contenders` found.
        verifications: see `SpeculativeConfig`.
    """
    if tuple(verifications) == (COUPLED,):
        return dict(chosen)
    found: dict[str, SpeculativeConfig] = {}
    for name, how in chosen.items():
        if _has_weights(how):
            found |= {f"{name} {kind}": _with(how, verification=kind) for kind in verifications}
        else:
            found[name] = how
    return found


def method_of(label: str) -> str:
    """Return the method, or the methods, of a label that `contenders`, `budgeted` or `verified` gave."""
    return label.partition(" ")[0]


def automatic(length: int | None = None) -> SpeculativeConfig:
    """Return the config of an engine that chooses its method, for drafts of at most `length` tokens."""
    return SpeculativeConfig(method=AUTO, num_speculative_tokens=length, lengths="goodput")


def _combined(name: str, alone: Mapping[str, SpeculativeConfig]) -> SpeculativeConfig:
    """Return the config of the methods of a name together, from each one's own config."""
    parts = name.split(_AND)
    if len(parts) == 1:
        return alone[name]
    for part in parts:
        if part == PLAIN or parts.count(part) > 1:
            raise ConfigError(f"{part!r} cannot be a part of {shown(name)}; give methods that draft, each once")
    configs = [alone[part] for part in parts if part != AUTO]
    if AUTO in parts:
        configs.append(alone[AUTO])
    return _with(together(configs), num_speculative_tokens=configs[0].num_speculative_tokens)


def _leave_out(name: str, error: ModelError, path: Path) -> None:
    if not has_embedded_vocabulary(TextCodec(path)):  # it is not expected to fit
        logger.info("%s is skipped: %s", name, error)
        return
    logger.warning("%s is skipped: %s; a head for this model is given with --draft %s=PATH", name, error, name)


def engines(
    model: str,
    chosen: Mapping[str, SpeculativeConfig],
    requests: int,
    *,
    lengths: str = "fixed",
    tree: str | TreeShape = "auto",
    dequantize: bool = False,
    device: Device = "cpu",
    max_model_len: int | None = None,
) -> dict[str, LLM]:
    """Return an engine for each contender, all at the same time.

    Args:
        model: the target, see `contenders`.
        chosen: what `contenders` or `budgeted` found.
        requests: requests that run at once; a cache has room for these and no more, so that many engines fit into
            memory.
        lengths: see `SpeculativeConfig`; `AUTO` chooses them in any case.
        tree: see `SpeculativeConfig`; shapes are for contenders with weights.
        dequantize: see `EngineConfig`.
        device: see `EngineConfig`.
        max_model_len: see `EngineConfig`.

    Raises:
        CapacityError: they do not fit all the same.
        ConfigError, ModelError: a contender cannot be made.
    """
    made = {}
    for name, config in chosen.items():
        own = config if config.automatic else _with(config, lengths=lengths)
        if not isinstance(tree, TreeShape) or _has_weights(config):
            own = _with(own, tree=tree)
        try:
            made[name] = LLM(
                model,
                speculative_config=own,
                enable_prefix_caching=False,
                max_num_seqs=requests,
                max_model_len=max_model_len,
                dequantize=dequantize,
                device=device,
                use_tqdm_on_load=False,
            )
        except CapacityError as error:
            if not made:
                raise
            raise CapacityError(
                f"the engine for {name} does not fit into memory with the {len(made)} before it ({error}); "
                "compare fewer methods or budgets at once"
            ) from None
    return made


def complete(
    llm: LLM, prompts: Sequence[Prefix], batch: int, params: Callable[[Prefix], SamplingParams]
) -> list[CompletionOutput]:
    """Return an engine's completions of prompts, of which `batch` run at once, with the `params` of each.

    Raises:
        ParlayError: a request failed.
    """
    outputs = []
    for first in range(0, len(prompts), batch):
        some = prompts[first : first + batch]
        for result in llm.generate([p.tokens for p in some], [params(p) for p in some], use_tqdm=False):
            if result.error is not None:
                raise result.error
            outputs.append(result.outputs[0])
    return outputs


def _with(config: SpeculativeConfig, **changed: Any) -> SpeculativeConfig:
    """Return a config with other values of what counts for all of its proposers."""
    return replace(config, **changed, several=tuple(replace(one, **changed) for one in config.several))


def _has_weights(config: SpeculativeConfig) -> bool:
    """Whether one of a config's proposers has weights."""
    return any("model" in one.options for one in (config, *config.several))
