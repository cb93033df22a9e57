"""Several methods at once, and a policy that does as it likes."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import Pair, proposer_options

from parlay.drafting.policy import Ahead, Asking, Policy


def every_method(pair: Pair, method: str | None = None, **more: Any) -> list[dict[str, Any]]:
    """Return the config of all methods without weights, and of one with them."""
    every = {"method": "auto", "prompt_lookup_min": 1, "prompt_lookup_max": 3, **more}
    return [every] if method is None else [every, {"method": method, **proposer_options(method, pair)}]


def choose_at_random(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Let policies choose at random, anew in every step."""

    def choose(self: Policy, chances: Sequence[Sequence[float]], *of: int, **more: bool) -> list[list[int]]:
        # A parent is as likely as its child at least, so whatever is likely enough is a tree.
        least = [rng.choice([2.0, 0.0, *own]) for own in chances]
        return [
            [node for node, chance in enumerate(own) if chance >= bound]
            if rng.random() < 0.5
            else list(range(rng.randint(0, len(own))))
            for own, bound in zip(chances, least, strict=True)
        ]

    def length(self: Ahead, most: int, *of: Any, **more: bool) -> int:
        self.trial = rng.random() < 0.3
        return rng.randint(0, most)

    def best(self: Ahead, *of: int) -> tuple[int, float, int, list[float]]:
        return 0, rng.choice([0.0, 0.5, 1e9]), 0, []

    monkeypatch.setattr(Policy, "choose", choose)
    monkeypatch.setattr(Policy, "hopeful", property(lambda self: rng.random() < 0.8))
    monkeypatch.setattr(Policy, "branches", property(lambda self: rng.random() < 0.7))
    monkeypatch.setattr(Asking, "affords", lambda self, count: rng.random() < 0.8)
    monkeypatch.setattr(Ahead, "choose", length)
    monkeypatch.setattr(Ahead, "best", best)
    monkeypatch.setattr(Ahead, "affords", property(lambda self: rng.random() < 0.5))
    monkeypatch.setattr(Ahead, "gain", property(lambda self: rng.random() * 4))
