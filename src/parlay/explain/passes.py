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
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.models.config import ModelConfig
from parlay.models.select import load_model
from parlay.runner.runner import ModelRunner
from parlay.types.cache import StateRoom

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


def time_passes(config: ModelConfig, dtype: torch.dtype, seconds: float, rows: Sequence[int] = ROWS) -> PassTimes:
    """Load a model and time its passes, of as many sizes as `seconds` have room for.

    Args:
        config: of the model.
        dtype: of its weights.
        seconds: that it may take, loading apart; each size is timed several times.
        rows: sizes, each twice the one before.

    Raises:
        ConfigError: not even a pass of one row and one of two fit into the time.
        ModelError: the model cannot be read or served.
    """
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds must be a number above 0, not {seconds}")
    torch.set_num_threads(env.threads())
    kernels = select_kernels()
    kernels.set_threads(env.threads())
    tune(kernels, env.threads())
    rows = [count for count in rows if count <= config.max_position]
    loaded = load_model(config, dtype, config.max_position, kernels)
    blocks = -(-rows[-1] // _BLOCK)
    runner = ModelRunner(loaded, kernels, blocks, _BLOCK, room=StateRoom(slots=2))
    measured = timed_passes(runner, blocks, seconds, rows, of=median)
    if len(measured) < 2:
        raise ConfigError(f"{seconds:g} seconds are not enough to time passes of this model; raise --seconds")
    return PassTimes.of(measured)
