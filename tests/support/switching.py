"""Several methods at once, and a controller that does as it likes."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import Pair, proposer_options

from parlay.drafting.controller import Controller


def every_method(pair: Pair, method: str | None = None, **more: Any) -> list[dict[str, Any]]:
    """Return the config of all methods without weights, and of one with them."""
    every = {"method": "auto", "prompt_lookup_min": 1, "prompt_lookup_max": 3, **more}
    return [every] if method is None else [every, {"method": method, **proposer_options(method, pair)}]


def choose_at_random(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Let controllers choose at random, anew in every step."""

    def asks(self: Controller, *of: int) -> bool:
        return rng.random() < 0.8

    def choose(self: Controller, chances: Sequence[Sequence[float]], *of: int, **more: bool) -> list[list[int]]:
        # A parent is as likely as its child at least, so whatever is likely enough is a tree.
        least = [rng.choice([2.0, 0.0, *own]) for own in chances]
        return [
            [node for node, chance in enumerate(own) if chance >= bound]
            if rng.random() < 0.5
            else list(range(rng.randint(0, len(own))))
            for own, bound in zip(chances, least, strict=True)
        ]

    def next_length(self: Controller, most: int, *of: int, **more: bool) -> int:
        return rng.randint(0, most)

    def saving(self: Controller, *of: int) -> float:
        return rng.choice([0.0, 0.5, 1e9])

    monkeypatch.setattr(Controller, "asks", asks)
    monkeypatch.setattr(Controller, "choose", choose)
    monkeypatch.setattr(Controller, "next_length", next_length)
    monkeypatch.setattr(Controller, "saving", saving)
    monkeypatch.setattr(Controller, "branches", property(lambda self: rng.random() < 0.7))
    monkeypatch.setattr(Controller, "trying", property(lambda self: rng.random() < 0.3))
    monkeypatch.setattr(Controller, "device_gain", property(lambda self: rng.random() * 4))
