"""The time of a model's passes on this machine, without an engine around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import numpy as np
import torch

from parlay import env
from parlay.engine.timing import timed_passes
from parlay.errors import ConfigError
from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.models.config import ModelConfig
from parlay.models.select import load_model
from parlay.runner.runner import ModelRunner
from parlay.types.cache import StateCapacity

ROWS = tuple(1 << i for i in range(10))  # 1 to 512
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of a model's passes by rows.

    Attributes:
        timed: rows and seconds, both ascending.
    """

    timed: tuple[tuple[int, float], ...]

    @staticmethod
    def of(measured: Sequence[tuple[int, float]]) -> "PassTimes":
        """Return times that never fall: what a pass took is an upper bound for passes of fewer rows."""
        least = list(accumulate((seconds for _, seconds in reversed(measured)), min))[::-1]
        return PassTimes(tuple((rows, seconds) for (rows, _), seconds in zip(measured, least, strict=True)))

    @property
    def most_rows(self) -> int:
        """Rows of the largest pass that was timed."""
        return self.timed[-1][0]

    def seconds(self, rows: int) -> float:
        """Return the time of a pass of so many rows: linear between those timed, in proportion beyond."""
        sizes, seconds = zip(*self.timed, strict=True)
        return float(np.interp(rows, sizes, seconds)) * max(1.0, rows / self.most_rows)


def load_runner(config: ModelConfig, dtype: torch.dtype, rows: int, kernels: Kernels) -> tuple[ModelRunner, int]:
    """Load a model to time its passes of at most so many rows; return what runs them, and its number of blocks."""
    torch.set_num_threads(env.threads())
    kernels.set_threads(env.threads())
    tune(kernels, env.threads())
    loaded = load_model(config, dtype, config.max_position, kernels)
    blocks = -(-(rows + 1) // _BLOCK)  # passes begin at the first or second position, see `timed_passes`
    return ModelRunner(loaded, kernels, blocks, _BLOCK, room=StateCapacity(slots=2)), blocks


def time_passes(config: ModelConfig, dtype: torch.dtype, seconds: float) -> PassTimes:
    """Load a model and time its passes, of as many sizes as `seconds` have room for.

    Args:
        config: the model's config.
        dtype: dtype of its weights.
        seconds: longest time to take, loading apart; each size is timed several times.

    Raises:
        ConfigError: not even a pass of one row and one of two fit into the time.
        ModelError: the model cannot be read or served.
    """
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds must be a number above 0, not {seconds}")
    rows = [count for count in ROWS if count < config.max_position]
    runner, blocks = load_runner(config, dtype, rows[-1], select_kernels())
    measured = timed_passes(runner, blocks, seconds, rows, of=median)
    if len(measured) < 2:
        raise ConfigError(f"{seconds:g} seconds are not enough to time passes of this model; raise --seconds")
    return PassTimes.of(measured)
