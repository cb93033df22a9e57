"""The figures of a run of load."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parlay.bench.load import Outcome, Run
from parlay.bench.options import LoadOptions

LATE = 0.005  # seconds after its time at which a request counts as sent late

_SERIES = re.compile(r"^vllm:spec_decode_num_(\w+)_total(?:\{(.*)\})? ([\d.eE+-]+)")


def summarise(run: Run, options: LoadOptions) -> dict[str, Any]:
    """Return the row of a run.

    Latencies are over complete answers, in milliseconds: `ttft` to the first event with text, `tpot` the mean time of
    a token after it, `itl` the pauses between events (of which each may hold several tokens), `e2el` to the end.
    """
    done = [o for o in run.outcomes if o.error is None]
    duration = max(o.end for o in run.outcomes) - min(o.sent for o in run.outcomes)
    limits = options.limits()
    good = sum(_good(o, limits) for o in done)
    late = [o.ready - o.due for o in run.outcomes]
    held = [o.sent - o.ready for o in run.outcomes]
    return {
        "model": run.model,
        "requests": len(run.outcomes),
        "completed": len(done),
        "refused": sum(o.status == 429 for o in run.outcomes),
        "failed": sum(o.error is not None and o.status != 429 for o in run.outcomes),
        "errors": dict(Counter(o.error for o in run.outcomes if o.error is not None).most_common(5)),
        "duration_s": duration,
        "requests_per_s": len(done) / duration,
        "prompt_tokens": sum(o.prompt_tokens or 0 for o in done),
        "tokens": sum(o.tokens for o in done),
        "tokens_per_s": sum(o.tokens for o in done) / duration,
        "good_per_s": good / duration if limits else None,
        "good_share": good / len(run.outcomes) if limits else None,
        **{name: _spread([1e3 * s for o in done for s in seconds(o)]) for name, seconds in _MEASURES.items()},
        "late": sum(s > LATE for s in late),
        "late_ms": _spread([1e3 * s for s in late]),
        "held_back_ms": _spread([1e3 * s for s in held]) if options.max_concurrency else None,
        "client_lag_ms": _spread([1e3 * s for s in run.lags]),
        "speculation": acceptance(run.before, run.after),
    }


def latencies(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row's latencies, one a line, those that were seen."""
    titles = {"ttft": "first token", "tpot": "token after it", "itl": "between events", "e2el": "whole request"}
    return [{"measure": f"{titles[name]} ({name})", **row[name]} for name in titles if row[name] is not None]


def panels(row: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the data to plot of a row; see `parlay.bench.plot`."""
    model = str(row["model"])
    shown = {
        f"{found['measure']}, ms": {model: {p: found[p] for p in ("p50", "p90", "p99")}} for found in latencies(row)
    }
    speculation = row["speculation"]
    if speculation is not None and speculation["by_position"]:
        positions = {str(i + 1): share for i, share in enumerate(speculation["by_position"])}
        shown["share of drafts confirmed to position"] = {model: positions}
    return shown


def acceptance(before: str, after: str) -> dict[str, Any] | None:
    """Return the speculation between two readings of `/metrics`; None if nothing was drafted."""
    then, now = _counts(before), _counts(after)
    # A server that was restarted in between counts from zero.
    grown = {key: value - then.get(key, 0.0) if value >= then.get(key, 0.0) else value for key, value in now.items()}
    drafts, drafted, accepted = (grown.get((name, ""), 0.0) for name in ("drafts", "draft_tokens", "accepted_tokens"))
    if not drafts:
        return None
    positions = sorted((int(at), n) for (name, at), n in grown.items() if name == "accepted_tokens_per_pos")
    return {
        "drafts": int(drafts),
        "drafted": int(drafted),
        "accepted": int(accepted),
        "acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_length": 1 + accepted / drafts,
        "by_position": [n / drafts for _, n in positions],
    }


def _counts(text: str) -> dict[tuple[str, str], float]:
    """Return a reading's counters by name and position, summed over other labels."""
    counts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for line in text.splitlines():
        found = _SERIES.match(line)
        if found:
            position = re.search(r'\bposition="(\d+)"', found[2] or "")
            counts[found[1], position[1] if position else ""] += float(found[3])
    return dict(counts)


def _first_token(o: Outcome) -> list[float]:
    return [o.events[0] - o.sent] if o.events else []


def _per_token(o: Outcome) -> list[float]:
    return [(o.events[-1] - o.events[0]) / (o.tokens - 1)] if o.events and o.tokens > 1 else []


def _pauses(o: Outcome) -> list[float]:
    return [b - a for a, b in zip(o.events, o.events[1:], strict=False)]


def _whole(o: Outcome) -> list[float]:
    return [o.end - o.sent]


_MEASURES = {"ttft": _first_token, "tpot": _per_token, "itl": _pauses, "e2el": _whole}


def _good(o: Outcome, limits: Mapping[str, float]) -> bool:
    return all(1e3 * s <= limit for name, limit in limits.items() for s in _MEASURES[name](o))


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p90, p99 = (float(p) for p in np.percentile(values, (50, 90, 99)))
    return {"mean": float(np.mean(values)), "p50": p50, "p90": p90, "p99": p99, "max": float(max(values))}
