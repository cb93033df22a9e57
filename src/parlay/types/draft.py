"""The one draft type: what every proposer emits and the one verifier reads."""

from collections.abc import Sequence
from typing import Any

import msgspec

ROOT = -1
_CHAIN = tuple(range(ROOT, 1024))  # the parents of a chain's nodes


# Several are made for each request and step, and a struct is made in an eighth of the time of a dataclass.
class Draft(msgspec.Struct, frozen=True):
    """The draft tokens of one request in one step: a tree below the root, parents before children.

    Attributes:
        tokens: draft token ids, one per node, best path first.
        parents: index of each node's parent, `ROOT` for children of the root. A chain counts upward: -1, 0, 1 ...
        source: name of each node's proposer.
        probs: how likely a node is to be accepted given that its parent is; never used for correctness. From a
            proposer they are its own estimates, if it has any; in a plan they are calibrated, and every node has one.
        q: distribution that each node was drawn from, None if it was not drawn; kept only where a verifier
            needs it. In a plan these are numbers that refer to distributions kept where nodes are drawn and verified.
            Such a node, and with it its later siblings, may be left out because of its ancestors and distribution,
            never because of its own token, or the output would not have the target's distribution.
        odds: log-odds of the proposer's own estimates where `probs` is calibrated; the calibration learns from them.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    source: tuple[str, ...] = ()
    probs: tuple[float, ...] | None = None
    q: tuple[Any, ...] | None = None
    odds: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        source: str,
        probs: Sequence[float] | None = None,
        q: Sequence[Any] | None = None,
    ) -> "Draft":
        """Return the draft in which every token is the only child of the one before it."""
        n = len(tokens)
        estimates, distributions = None if probs is None else tuple(probs), None if q is None else tuple(q)
        return cls(tuple(tokens), _chain(n), (source,) * n, estimates, distributions)

    @property
    def is_chain(self) -> bool:
        """Whether every node is the only child of the one before it."""
        return self.parents == _chain(len(self.tokens))

    def cut(self, n: int) -> "Draft":
        """Return the first `n` nodes; always a valid draft, since parents come before children."""
        if n >= len(self.tokens):
            return self
        probs = None if self.probs is None else self.probs[:n]
        odds = None if self.odds is None else self.odds[:n]
        q = None if self.q is None else self.q[:n]
        return Draft(self.tokens[:n], self.parents[:n], self.source[:n], probs, q, odds)

    def select(self, chosen: Sequence[int]) -> "Draft":
        """Return only the nodes `chosen`, ascending, which must include the parent of each."""
        if len(chosen) == len(self.tokens):
            return self
        if chosen and chosen[-1] == len(chosen) - 1:  # the first nodes
            return self.cut(len(chosen))
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(chosen)}}
        return Draft(
            tuple(self.tokens[node] for node in chosen),
            tuple(place[self.parents[node]] for node in chosen),
            tuple(self.source[node] for node in chosen),
            None if self.probs is None else tuple(self.probs[node] for node in chosen),
            None if self.q is None else tuple(self.q[node] for node in chosen),
            None if self.odds is None else tuple(self.odds[node] for node in chosen),
        )


def _chain(n: int) -> tuple[int, ...]:
    """Return the parents of a chain of `n` nodes."""
    return _CHAIN[:n] if n < len(_CHAIN) else tuple(range(ROOT, n - 1))


NO_DRAFT = Draft()
