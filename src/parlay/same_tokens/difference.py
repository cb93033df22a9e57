"""Where the answers to the same requests differ."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """What is compared of an answer.

    Attributes:
        text: text of the answer, where that is all that is known of some tokens.
        tokens: ids or texts, as far as they are known.
        logprobs: log-probabilities reported for each token, to the bit.
        likely: the likeliest tokens at each place, with their log-probabilities.
    """

    text: str = ""
    tokens: tuple[Hashable, ...] = ()
    logprobs: tuple[Any, ...] = ()
    likely: tuple[Mapping[Any, float], ...] = ()


def first_difference(found: Sequence[ComparedAnswer], expected: Sequence[ComparedAnswer]) -> str | None:
    """Return where two lists of answers differ, or None; and by how much the logit was behind, if that is known."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        for j, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)):
            if x != y:
                return f"prompt {i}, token {j}: {x!r} instead of {y!r}{_gap(b, j, x, y)}"
            if a.logprobs[j : j + 1] != b.logprobs[j : j + 1]:
                return f"prompt {i}, token {j}: log-probabilities"
        if a.text != b.text:
            place = next((j for j, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y), None)
            where = min(len(a.text), len(b.text)) if place is None else place
            return f"prompt {i}, character {where}: {a.text[where : where + 9]!r}, not {b.text[where : where + 9]!r}"
        if len(a.tokens) != len(b.tokens):
            return f"prompt {i}: {len(a.tokens)} tokens instead of {len(b.tokens)}"
    return None


def _gap(expected: ComparedAnswer, position: int, found: object, right: object) -> str:
    """Say how far apart the logits of two tokens are, as far as their log-probabilities are known."""
    for table in expected.likely[position : position + 1]:
        if {found, right} <= table.keys():
            return f", whose logit is {abs(table[right] - table[found]):.3g} away"
        return ", whose logit is not among the highest" if table else ""
    return ""
