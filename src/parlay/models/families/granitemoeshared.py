"""Granite 3 with experts, of which one takes all rows: a `GraniteMoe` by another name."""

from parlay.models.families.granitemoe import describe

__all__ = ["describe"]
