"""The counters of several engines, added up."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from parlay.types.stats import DraftStats, StatsSnapshot, summed


def total(snapshots: Sequence[StatsSnapshot]) -> StatsSnapshot:
    """Return the sums of all that snapshots count; what is counted by name or place is added by name or place."""
    return snapshots[0] if len(snapshots) == 1 else _sum(snapshots)


def _sum(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, StatsSnapshot | DraftStats):
        return type(first)(**{f.name: _sum([getattr(one, f.name) for one in values]) for f in fields(first)})
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for one in values for name in one)
        return {name: _sum([one[name] for one in values if name in one]) for name in names}
    if isinstance(first, list):
        return summed(values)
    return sum(values)
