"""Spans as plans have them: with numbers for the distributions that guesses were drawn from."""

from collections.abc import Sequence
from dataclasses import replace

from parlay.sampling.distribution import Distribution, separate
from parlay.types.plan import Span


def numbered(spans: Sequence[Span]) -> tuple[list[Span], dict[int, tuple[Distribution, ...]]]:
    """Return spans of requests 0, 1, ... whose drafts are plain data, and the distributions of each."""
    made, distributions = [], {}
    for i, span in enumerate(spans):
        draft, distributions[i] = separate(span.draft)
        made.append(replace(span, request_id=i, draft=draft))
    return made, distributions
