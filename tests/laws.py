"""Spans as plans have them: with numbers for the laws that guesses were drawn from."""

from collections.abc import Sequence
from dataclasses import replace

from parlay.sampling.law import Law, separate
from parlay.types.plan import Span


def numbered(spans: Sequence[Span]) -> tuple[list[Span], dict[int, tuple[Law, ...]]]:
    """Return spans of requests 0, 1, ... whose drafts are plain data, and the laws of each."""
    made, laws = [], {}
    for i, span in enumerate(spans):
        draft, laws[i] = separate(span.draft)
        made.append(replace(span, request_id=i, draft=draft))
    return made, laws
