"""Several methods at once, and a policy and a clock that do as they like."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import Pair, proposer_options

from parlay.drafting.cost import StepCost
from parlay.drafting.device_length import DeviceLength
from parlay.drafting.draft_cost import DraftCost
from parlay.drafting.drafting import Drafting
from parlay.drafting.host_budget import HostProposerBudget
from parlay.drafting.policy import Policy
from parlay.drafting.state import DraftedRequest
from parlay.engine.scheduler import Scheduler
from parlay.types.plan import Plan

Patch = Callable[[pytest.MonkeyPatch], None]


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

    def length(self: DeviceLength, most: int, *of: Any, **more: bool) -> int:
        self.trial = rng.random() < 0.3
        return rng.randint(0, most)

    def best(self: DeviceLength, *of: int) -> tuple[int, float, int, list[float]]:
        return 0, rng.choice([0.0, 0.5, 1e9]), 0, []

    monkeypatch.setattr(Policy, "choose", choose)
    monkeypatch.setattr(Policy, "may_draft", property(lambda self: rng.random() < 0.8))
    monkeypatch.setattr(Policy, "branches", property(lambda self: rng.random() < 0.7))
    monkeypatch.setattr(HostProposerBudget, "affords", lambda self, count: rng.random() < 0.8)
    monkeypatch.setattr(DeviceLength, "choose", length)
    monkeypatch.setattr(DeviceLength, "best", best)
    monkeypatch.setattr(DeviceLength, "affords", property(lambda self: rng.random() < 0.5))
    monkeypatch.setattr(DeviceLength, "gain", property(lambda self: rng.random() * 4))


def any_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let policies choose at random, the same in every run."""
    choose_at_random(monkeypatch, random.Random(5))


def limited_drafts(choose: Callable[[int, int, int], int]) -> Patch:
    """Return what decides how long drafts may be, given the step, the request and the usual length."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        usual, plan, step = Drafting.limit, Scheduler.plan, 0

        def planned(self: Scheduler, now: float = 0.0) -> Plan:
            nonlocal step
            step += 1
            return plan(self, now)

        def limit(self: Drafting, request: DraftedRequest) -> int:
            return choose(step, request.request_id, usual(self, request))

        monkeypatch.setattr(Scheduler, "plan", planned)
        monkeypatch.setattr(Drafting, "limit", limit)

    return patch


def any_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make times up, so that costs change with every step and lengths with them."""
    rng, step, draft = random.Random(3), StepCost.observe, DraftCost.observe

    def stepped(self: StepCost, rows: int, keys: int, seconds: float) -> float:
        return step(self, rows, keys, rng.choice((0.001, 0.002, 0.05, 9.0)))

    def drafted(self: DraftCost, length: int, count: int, seconds: float, **more: Any) -> None:
        draft(self, length, count, rng.choice((1e-5, 1e-2)), **more)

    monkeypatch.setattr(StepCost, "observe", stepped)
    monkeypatch.setattr(DraftCost, "observe", drafted)


def free_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts cost nothing."""
    _price(monkeypatch, lambda rows: 1.0)
    monkeypatch.setattr(DraftCost, "known", {1: [1.0] * 5})
    monkeypatch.setattr(DraftCost, "by_length", lambda self, most, count: [0.0] * (most + 1))


def expensive_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every further row cost more than all before it."""
    _price(monkeypatch, lambda rows: max(rows, 1) ** 2.0)


def _price(monkeypatch: pytest.MonkeyPatch, price: Callable[[int], float]) -> None:
    def timed(self: Policy, *timed: Any, **more: Any) -> None:
        self.cost.table = [price(rows) for rows in range(len(self.cost.table))]

    monkeypatch.setattr(Policy, "timed", timed)
