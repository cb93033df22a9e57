"""Which proposers a benchmark compares on a target, and with what weights."""

from dataclasses import replace

from parlay.bench.widen_heads import FOLDER
from parlay.config import SpeculativeConfig
from parlay.errors import ModelError
from parlay.llm import LLM
from parlay.log import logger
from parlay.models.select import describe_model, find_model, resolve_dtype
from parlay.proposers.base import TargetInfo
from parlay.proposers.select import embedded_configs, make_proposer


def contenders(model: str, length: int | None) -> dict[str, SpeculativeConfig]:
    """Return how each proposer serves a target, plain decoding first.

    A checkpoint in the target's folder `heads`, named after its method, takes the place of the embedded one. An
    embedded one that is for another target is left out, and the log says so.

    Args:
        model: name or directory of the target.
        length: nodes a draft, for proposers that draft; None takes each one's default.

    Raises:
        ModelError: the target cannot be found or read, or a checkpoint in its folder does not fit.
    """
    config = describe_model(model)
    target = TargetInfo(config, resolve_dtype("auto", config), config.max_position)
    heads = find_model(model) / FOLDER
    kept = {}
    for name, how in embedded_configs(length, heads).items():
        try:
            make_proposer(how, target)
        except ModelError as error:
            if (heads / name).is_dir():
                raise
            logger.warning(
                "%s is left out: %s. For a model that was widened, `parlay bench widen --output %s --head %s`, with "
                "the model and shape it was made with, adds its head",
                name,
                error,
                model,
                how.options.get("model"),
            )
            continue
        kept[name] = how
    return kept


def engines(model: str, length: int | None, requests: int, lengths: str = "fixed") -> dict[str, LLM]:
    """Return an engine for each contender, all at the same time.

    Args:
        model: as in `contenders`.
        length: likewise.
        requests: that run at once; a cache has room for these and no more, so that many engines fit into memory.
        lengths: see `SpeculativeConfig`.

    Raises:
        CapacityError: they do not fit all the same.
        ModelError: as `contenders` does.
    """
    return {
        name: LLM(
            model,
            speculative_config=replace(config, lengths=lengths),
            enable_prefix_caching=False,
            max_num_seqs=requests,
        )
        for name, config in contenders(model, length).items()
    }
