"""What passes of a model cost on this machine, without an engine around them."""

from dataclasses import dataclass, replace

import torch

from parlay import env
from parlay.bench.costs import Costs, of_passes
from parlay.engine.timing import timed_passes
from parlay.errors import ConfigError
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.models.config import ModelConfig
from parlay.models.select import cache_spec, describe_model, load_model, resolve_dtype
from parlay.runner.footprint import weight_bytes
from parlay.runner.runner import ModelRunner

ROWS = tuple(1 << i for i in range(10))  # 1 to 512
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes of a model that were timed.

    Attributes:
        config: of the model.
        dtype: of its weights.
        costs: seconds by rows, and of a key.
    """

    config: ModelConfig
    dtype: torch.dtype
    costs: Costs


def time_passes(model: str, seconds: float, rows: tuple[int, ...] = ROWS, *, dequantize: bool = False) -> Passes:
    """Load a model and time its passes, of as many sizes as `seconds` have room for.

    Args:
        model: name or directory.
        seconds: that it may take, loading apart; each size has a few turns.
        rows: sizes, each twice the one before.
        dequantize: see `EngineConfig`.

    Raises:
        ConfigError: not even a pass of one row and one of two fit into the time.
        ModelError: the model cannot be found, read or served.
    """
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds must be a number above 0, not {seconds}")
    config = replace(describe_model(model), storage="plain" if dequantize else "stored")
    dtype = resolve_dtype("auto", config)
    torch.set_num_threads(env.threads())
    kernels = select_kernels()
    kernels.set_threads(env.threads())
    tune(kernels, env.threads())
    rows = tuple(count for count in rows if count <= config.max_position)
    loaded = load_model(config, dtype, config.max_position, kernels)
    blocks = -(-rows[-1] // _BLOCK)
    timed = timed_passes(ModelRunner(loaded, kernels, blocks, _BLOCK), blocks, seconds, rows)
    if len(timed) < 2:
        raise ConfigError(f"{seconds:g} seconds are not enough to time passes of this model; allow more")
    share = cache_spec(config, dtype).bytes_per_token / weight_bytes(config, dtype)
    return Passes(config, dtype, of_passes(model, timed, share))
