"""Chosen draft lengths against the best fixed length, by replays.

The best fixed length is picked on one half of a trace's requests and compared on the other, both ways round, so that
it is not measured on the data that it was picked by. Plain decoding is one of the fixed lengths. Chosen lengths begin
with nothing learnt but the passes that an engine times at start.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.replays.costs import Costs
from benchmarks.replays.replay import PLAIN, STEPS, Setting, priced, replay
from benchmarks.replays.steps import Outcome
from benchmarks.replays.traces import Recorded, Trace
from parlay.config.speculative import AUTO
from parlay.errors import ConfigError, nearest
from parlay.proposers.select import automatic, weightless

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_ANY = Costs(name="any", passes=((1, 1.0),))  # steps of fixed lengths do not depend on what they cost


@dataclass(frozen=True, slots=True)
class _Half:
    """One half of a trace, and what fixed lengths come to on it."""

    requests: Sequence[Recorded]
    fixed: Mapping[Setting, Outcome]

    def rates(self, costs: Costs) -> dict[Setting, float]:
        """Return tokens per second of every fixed setting."""
        return {setting: self.priced(setting, costs).tokens_per_second for setting in self.fixed}

    def priced(self, setting: Setting, costs: Costs) -> Outcome:
        return priced(self.fixed[setting], setting, costs, weights=setting.method in self.requests[0].chains)


def measure(
    traces: Iterable[Trace],
    batches: Sequence[int],
    tables: Sequence[Costs],
    methods: Sequence[str] | None,
    lengths: Sequence[int],
    tick: Callable[[str], None],
    steps: int = STEPS,
) -> Iterator[dict[str, Any]]:
    """Yield one row a trace, batch size, method and cost table.

    Args:
        traces: what was recorded.
        batches: requests at once.
        tables: what steps cost.
        methods: the proposers; None takes `AUTO`, proposers on the host and those with chains in a trace.
        lengths: fixed ones, beside plain decoding.
        tick: called with a label before every row.
        steps: of plain decoding, that each half has at least.

    Raises:
        ConfigError: a trace has fewer than two requests, or no chains of a method that needs them.
    """
    for trace in traces:
        known = (AUTO, *weightless(), *trace.methods)
        for method in methods or ():
            if method not in known:
                raise ConfigError(
                    f"the trace of {trace.workload} has no chains of {method!r}{nearest(method, known)}; record it "
                    "again with this proposer"
                )
        if len(trace.requests) < 2:
            raise ConfigError(f"the trace of {trace.workload} has no two halves; record more requests")
        for batch in batches:
            parts = trace.requests[::2], trace.requests[1::2]
            plain = [replay(p, PLAIN, batch, _ANY, temperature=trace.temperature, steps=steps) for p in parts]
            for method in methods or known:
                case = f"{trace.workload}, temperature {trace.temperature:g}, batch {batch}: {method}"
                tick(case)
                halves = []
                for requests, still in zip(parts, plain, strict=True):
                    fixed = {
                        s: replay(requests, s, batch, _ANY, temperature=trace.temperature, steps=steps)
                        for s in _settings(requests, method, lengths)
                    }
                    halves.append(_Half(requests, {PLAIN: still, **fixed}))
                for costs in tables:
                    tick(f"{case}, {costs.name}")
                    yield {
                        "workload": trace.workload,
                        "temperature": trace.temperature,
                        "batch": batch,
                        "costs": costs.name,
                        "method": method,
                    } | _row(trace, halves, method, batch, costs, steps)


def _settings(requests: Sequence[Recorded], method: str, lengths: Sequence[int]) -> list[Setting]:
    """Return the fixed settings that chosen lengths are compared with: for `AUTO` those of all its methods."""
    if method == AUTO:
        return [setting for name in automatic() for setting in _settings(requests, name, lengths)]
    longest = max((len(d) for r in requests for d in r.chains.get(method, ())), default=max(lengths))
    return [Setting(method=method, length=length) for length in lengths if length <= longest]


def _row(trace: Trace, halves: Sequence[_Half], method: str, batch: int, costs: Costs, steps: int) -> dict[str, Any]:
    setting = Setting(method=method, chosen=True)
    own = [replay(h.requests, setting, batch, costs, temperature=trace.temperature, steps=steps) for h in halves]
    rates = [half.rates(costs) for half in halves]
    picked = [max(found, key=lambda s: found[s]) for found in rates]
    best = _together([half.priced(other, costs) for half, other in zip(halves, reversed(picked), strict=True)])
    plain, chosen = _together([half.priced(PLAIN, costs) for half in halves]), _together(own)
    return {
        "plain_tokens_per_s": plain,
        "best_length": "/".join(str(setting.length or 0) for setting in picked),
        "best_method": "/".join(setting.method for setting in picked),
        "best_ratio": best / plain,
        "chosen_ratio": chosen / plain,
        "regret": 1 - chosen / best,
        "mean_length": sum(o.mean_length for o in own) / len(own),
        "drafted_share": sum(o.drafted_share for o in own) / len(own),
    }


def _together(outcomes: Sequence[Outcome]) -> float:
    """Return tokens per second of several replays, one after the other."""
    tokens = sum(step.emitted for o in outcomes for step in o.steps)
    return tokens / sum(sum(o.seconds) for o in outcomes)
