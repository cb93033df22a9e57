"""The classical samplers, as slow and obvious as they get: what fast ones are to be compared with.

Each is written against a `Chance`, which makes every random decision. `distribution` follows all of them and gives
the exact distribution of what comes out; a test may as well give a `Chance` that reads uniforms.

Sources: rejection sampling Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318);
block verification Sun et al. 2024 (2403.10444); several candidates for one place, with replacement Miao et al. 2023
(SpecInfer, 2305.09781), without Chen et al. 2024 (Sequoia, 2402.12374).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Distribution = NDArray[np.float64]  # [vocab]
Model = Callable[[tuple[int, ...]], Distribution]  # of the next token, after so many
T = TypeVar("T")


class Chance(Protocol):
    """Where randomness comes from; no decision depends on another."""

    def true(self, probability: float) -> bool:
        """Return True with this probability."""
        ...

    def token(self, distribution: Distribution) -> int:
        """Return a token."""
        ...


class _Ended(Exception):  # noqa: N818 - none of its own making
    """The script of decisions is at its end."""


class _Script:
    """Takes the decisions that it is told; at the end of them it notes what could be decided next."""

    def __init__(self, decisions: Sequence[int]) -> None:
        self._decisions = list(decisions)
        self.probability = 1.0
        self.next: list[int] = []

    def true(self, probability: float) -> bool:
        return self._take(np.array([1 - probability, probability])) == 1

    def token(self, distribution: Distribution) -> int:
        return self._take(distribution)

    def _take(self, distribution: Distribution) -> int:
        if not self._decisions:
            self.next = [i for i, p in enumerate(distribution) if p > 0]
            raise _Ended
        chosen = self._decisions.pop(0)
        self.probability *= float(distribution[chosen])
        return chosen


def distribution(play: Callable[[Chance], T]) -> dict[T, float]:
    """Return the exact distribution of what `play` returns, by following every decision that it can take."""
    found: dict[T, float] = {}
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        script = _Script(waiting.pop())
        decided = tuple(script._decisions)
        try:
            made = play(script)
        except _Ended:
            waiting += [(*decided, choice) for choice in script.next]
            continue
        found[made] = found.get(made, 0.0) + script.probability
    return found


def rest(p: Distribution, q: Distribution) -> Distribution:
    """Return the distribution of what is left of `p` where `q` was tried in vain; `p` itself where nothing is."""
    left = np.maximum(p - q, 0)
    return left / left.sum() if left.sum() > 0 else p


def accepts(p: Distribution, q: Distribution, token: int) -> float:
    """Return the probability of accepting a token that was drawn from `q`."""
    return min(1.0, float(p[token] / q[token])) if q[token] > 0 else 0.0


def rejection(p: Model, q: Model, known: tuple[int, ...], draft: Sequence[int], chance: Chance) -> tuple[int, ...]:
    """Return the tokens that a chain gives; `q` says what each of its tokens was drawn from."""
    out = known
    for token in draft:
        if not chance.true(accepts(p(out), q(out), token)):
            return (*out, chance.token(rest(p(out), q(out))))[len(known) :]
        out = (*out, token)
    return (*out, chance.token(p(out)))[len(known) :]


def block(p: Model, q: Model, known: tuple[int, ...], draft: Sequence[int], chance: Chance) -> tuple[int, ...]:
    """Return the tokens that a chain gives where its tokens are judged together."""
    kept, best, length = 1.0, 1.0, 0
    for count in range(1, len(draft) + 1):
        before = (*known, *draft[: count - 1])
        kept = min(1.0, kept * float(p(before)[draft[count - 1]] / q(before)[draft[count - 1]]))
        if count == len(draft):
            wanted = kept
        else:
            here = (*before, draft[count - 1])
            more = float(np.maximum(kept * p(here) - q(here), 0).sum())
            wanted = more / (more + 1 - kept) if more + 1 - kept > 0 else 1.0
        if chance.true(wanted):  # all of them are asked, whatever became of earlier ones
            length, best = count, kept
    out = (*known, *draft[:length])
    after = p(out) if length == len(draft) else rest(best * p(out), q(out))
    return (*out, chance.token(after / after.sum()))[len(known) :]


def several(
    p: Distribution, q: Distribution, candidates: Sequence[int], chance: Chance, *, replaced: bool
) -> tuple[int | None, Distribution]:
    """Return which of several candidates for one place is accepted, None if none is, and what is left of `p`.

    Args:
        p: the target's distribution.
        q: what the candidates were drawn from, in this order.
        candidates: tokens.
        chance: decides.
        replaced: whether a candidate could be drawn again; if not, each was drawn from what the ones before had left.
    """
    for candidate in candidates:
        if chance.true(accepts(p, q, candidate)):
            return candidate, p
        p = rest(p, q)
        if not replaced:
            q = without(q, candidate)
            if not q.any():
                break
    return None, p


def without(q: Distribution, token: int) -> Distribution:
    """Return a distribution that never gives this token; nothing where it gives no other."""
    left = q.copy()
    left[token] = 0
    return left / left.sum() if left.sum() > 0 else left


def drawn(q: Distribution, count: int, chance: Chance, *, replaced: bool) -> list[int]:
    """Return candidates for one place."""
    made: list[int] = []
    while len(made) < count and q.any():
        made.append(chance.token(q))
        if not replaced:
            q = without(q, made[-1])
    return made
