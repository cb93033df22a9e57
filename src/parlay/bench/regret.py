"""What choosing lengths costs and gains against the best fixed length, by replays.

The best fixed length is picked on one half of a trace's requests and compared on the other, both ways round, so that
nobody is measured on what it was picked by. Plain decoding is one of the fixed lengths. Chosen lengths begin with
nothing learnt but what an engine times at start.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.bench.costs import Costs
from parlay.bench.replay import PLAIN, QUIET, Noise, Outcome, Setting, priced, replay
from parlay.bench.traces import Recorded, Trace

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
HOST = ("ngram", "suffix")  # what guesses without weights can be replayed on any trace


@dataclass(frozen=True, slots=True)
class _Half:
    """One half of a trace, and what fixed settings come to on it."""

    requests: Sequence[Recorded]
    fixed: dict[Setting, Outcome]


def measure(
    traces: Iterable[Trace],
    batches: Sequence[int],
    tables: Sequence[Costs],
    methods: Sequence[str] | None,
    lengths: Sequence[int],
    tick: Callable[[str], None],
    noise: Noise = QUIET,
) -> Iterator[dict[str, Any]]:
    """Yield one row a trace, batch size, cost table and method.

    Args:
        traces: what was recorded.
        batches: requests at once.
        tables: what steps cost.
        methods: who guesses; None takes proposers on the host and those with chains in a trace.
        lengths: fixed ones, beside plain decoding.
        tick: called with a label before every row.
        noise: of steps whose lengths are chosen.
    """
    for trace in traces:
        for batch in batches:
            for method in methods if methods is not None else (*HOST, *trace.methods):
                halves = [_half(trace.requests[first::2], method, lengths, batch, trace) for first in (0, 1)]
                for costs in tables:
                    case = f"{trace.workload}, temperature {trace.temperature:g}, batch {batch}"
                    tick(f"{case}: {method}, {costs.name}")
                    yield {
                        "workload": trace.workload,
                        "temperature": trace.temperature,
                        "batch": batch,
                        "costs": costs.name,
                        "method": method,
                    } | _row(trace, halves, method, batch, costs, noise)


def _half(requests: Sequence[Recorded], method: str, lengths: Sequence[int], batch: int, trace: Trace) -> _Half:
    longest = max((len(d) for r in requests for d in r.chains.get(method, ())), default=max(lengths))
    settings = [PLAIN, *(Setting(method=method, length=length) for length in lengths if length <= longest)]
    fixed = {s: replay(requests, s, batch, _ANY, temperature=trace.temperature) for s in settings}
    return _Half(requests, fixed)


def _row(
    trace: Trace, halves: Sequence[_Half], method: str, batch: int, costs: Costs, noise: Noise
) -> dict[str, Any]:
    weights = method in trace.methods
    rates = [_rates(half, costs, weights) for half in halves]
    setting = Setting(method=method, chosen=True)
    chosen = [replay(h.requests, setting, batch, costs, temperature=trace.temperature, noise=noise) for h in halves]
    still = [replay(h.requests, PLAIN, batch, costs, noise=noise) for h in halves]
    # Picked on one half, compared on the other. With noise all are compared under the chosen lengths' own.
    picked = [max(own, key=lambda s: own[s]) for own in rates]
    best = [priced(h.fixed[p], p, costs, weights and p != PLAIN) for h, p in zip(halves, reversed(picked), strict=True)]
    plain = _together(still)
    hindered = plain / _together([priced(h.fixed[PLAIN], PLAIN, costs, False) for h in halves])
    fixed, own = _together(best) * hindered, _together(chosen)
    return {
        "plain_tokens_per_s": plain,
        "best_length": [p.length or 0 for p in picked],
        "best_ratio": fixed / plain,
        "chosen_ratio": own / plain,
        "regret": 1 - own / fixed,
        "mean_length": sum(o.mean_length for o in chosen) / len(chosen),
        "drafted_share": sum(o.drafted_share for o in chosen) / len(chosen),
    }


def _rates(half: _Half, costs: Costs, weights: bool) -> dict[Setting, float]:
    return {
        s: priced(o, s, costs, weights and s != PLAIN).tokens_per_second for s, o in half.fixed.items()
    }


def _together(outcomes: Sequence[Outcome]) -> float:
    """Return tokens per second of several replays, one after the other."""
    tokens = sum(step.emitted for o in outcomes for step in o.steps)
    return tokens / sum(sum(o.seconds) for o in outcomes)


_ANY = Costs(name="any", passes=((1, 1.0),))
