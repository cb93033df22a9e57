"""What the interface asks of every proposer besides tokens: nothing leaks, nothing is kept, recordings replay."""

import gc
import random
from collections.abc import Sequence, Sized
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from asking import run
from conftest import MakeLLM, Pair, proposer_options
from fitting import fitted, variants
from table import DRAFTING, WITH_WEIGHTS
from watching import asks

from parlay.models.select import describe_model
from parlay.proposers.base import HostProposer, TargetInfo
from parlay.proposers.pass_recorder import PassRecorder
from parlay.proposers.select import proposers
from parlay.types.draft import Draft

ON_HOST = [name for name in DRAFTING if issubclass(proposers.load(name).Proposer, HostProposer)]
LEARNING = [name for name in ON_HOST if proposers.load(name).Proposer.learns]
NO_STATE = type, ModuleType, FunctionType, BuiltinFunctionType


def proposer(method: str, models: dict[str, Pair]) -> HostProposer:
    pair, module = models["float32"], proposers.load(method)
    target = TargetInfo(describe_model(str(pair.target)), torch.float32, 4096)
    made: HostProposer = module.Proposer(module.Options(**proposer_options(method, pair)), target)
    return made


def texts(count: int, seed: int = 1) -> list[list[int]]:
    """Return texts that share phrases, some of them repeated within."""
    rng = random.Random(seed)
    phrases = [[rng.randrange(256) for _ in range(12)] for _ in range(4)]
    return [[token for _ in range(6) for token in rng.choice(phrases)] for _ in range(count)]


def show(one: HostProposer, request: int, text: Sequence[int], tenant: str | None, *, end: bool = True) -> None:
    """Give a request's tokens, the first half as its prompt, and with `end` all that follows the end."""
    half = len(text) // 2
    one.admit(request, text[:half], tenant)
    one.observe(request, text[half:])
    if end:
        one.forget(request)


def drafts(one: HostProposer, request: int, text: Sequence[int], tenant: str | None) -> list[Draft]:
    """Return what it drafts along a text, by chain and tree, for a request that is dropped then."""
    found = []
    one.admit(request, text[:4], tenant)
    for token in text[4:]:
        one.observe(request, [token])
        found += [one.propose(request, 5), one.branch(request, 9)]
    one.forget(request)
    return found


@pytest.mark.parametrize("method", LEARNING)
@pytest.mark.parametrize("other", ["another", None])
def test_what_is_learnt_stays_with_its_tenant(models: dict[str, Pair], method: str, other: str | None) -> None:
    """Another's drafts, and their times, would tell what the first one's texts were."""
    fresh, learnt = proposer(method, models), proposer(method, models)
    *known, text = texts(9)
    for request, one in enumerate(known):
        show(learnt, request, one, "one")
    expected = drafts(fresh, 100, text, other)
    assert drafts(learnt, 100, text, other) == expected
    assert drafts(learnt, 101, text, "one") != expected, "it has learnt nothing, and the test shows nothing"


@pytest.mark.parametrize("method", LEARNING)
def test_what_nobody_may_use_is_not_learnt(models: dict[str, Pair], method: str) -> None:
    fresh, shown = proposer(method, models), proposer(method, models)
    *known, text = texts(9)
    for request, one in enumerate(known):
        show(shown, request, one, None)
    assert drafts(shown, 100, text, "one") == drafts(fresh, 100, text, "one")


@pytest.mark.parametrize("method", LEARNING)
def test_a_reset_drops_what_was_learnt(models: dict[str, Pair], method: str) -> None:
    fresh, learnt = proposer(method, models), proposer(method, models)
    *known, text = texts(9)
    for request, one in enumerate(known):
        show(learnt, request, one, "one", end=request % 2 == 0)
    learnt.reset()
    assert drafts(learnt, 100, text, "one") == drafts(fresh, 100, text, "one")


def size(one: HostProposer) -> int:
    """Return how many objects it holds, numbers in arrays included."""
    seen, found, count = set[int](), [vars(one)], 0
    while found:
        of: Any = found.pop()
        if id(of) in seen or isinstance(of, NO_STATE):
            continue
        seen.add(id(of))
        arrays = isinstance(of, np.ndarray | torch.Tensor)
        count += np.size(of) if arrays else len(of) if isinstance(of, Sized) else 1
        found += gc.get_referents(of)
    return count


@pytest.mark.parametrize("method", ON_HOST)
def test_requests_that_ended_leave_nothing(models: dict[str, Pair], method: str) -> None:
    """Whatever was kept for a request is dropped with it; what nobody may use is not kept at all."""
    one, sizes = proposer(method, models), []
    for request, text in enumerate(texts(120)):
        drafts(one, request, text, None)
        sizes.append(size(one))
    assert max(sizes[60:]) <= max(sizes[:60]) + 20


KINDS = [(method, variant) for method in WITH_WEIGHTS for variant in ("", *variants(method))]


@pytest.mark.parametrize(("method", "variant"), KINDS)
@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_recorded_passes_compute_what_they_did_when_recorded(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    variant: str,
    tree: bool,
) -> None:
    """An operation that is no kernel's would be missing in a replay, and drafts would only be worse."""
    pair = models["float32"]
    own = {"model": str(fitted(method, pair.target, variant))} if variant else proposer_options(method, pair)
    shape = {"tree": {"width": 2, "depth": 3}} if tree else {}
    config = {"method": method, "num_speculative_tokens": 6 if tree else 4, **own, **shape}

    def made() -> list[list[tuple[int, ...]]]:
        llm, found = make_llm(speculative_config=config), list[list[tuple[int, ...]]]()
        worker = llm.engine._worker
        propose = worker._proposer.propose

        def noting(*given: Any) -> Any:
            proposals = propose(*given)
            found.append([proposal.draft.tokens for proposal in proposals])
            return proposals

        monkeypatch.setattr(worker._proposer, "propose", noting)
        for temperature in (0.7, 0.0):
            run(llm, asks(temperature))
        return found

    recorded = made()
    monkeypatch.setattr(PassRecorder, "_record", lambda self, key, work: work())
    assert made() == recorded
    assert sum(len(draft) for drafts in recorded for draft in drafts) > 50
