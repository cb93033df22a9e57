"""EAGLE-type heads against what the reference implementations give: logits, tokens, whole generations."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from eagles import Twin, serve_golden
from safetensors.torch import load_file
from torch import Tensor

from parlay import LLM, SamplingParams
from parlay.engine.engine import Engine
from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.models.select import CausalModel, describe_model, load_model
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.feature_head import FeatureHead
from parlay.proposers.methods.eagle import proposer as eagle
from parlay.proposers.methods.eagle3 import proposer as eagle3
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner
from parlay.types.plan import CatchUp, Span, Verdict

GOLDENS = Path(__file__).parents[3] / "goldens"
CASES = ("eagle1", "eagle3_hub", "eagle3_speculators", "eagle3_variant")
SIZE, BLOCKS, LENGTH = 4, 24, 5
CLOSE = {"rtol": 0, "atol": 1e-3}


class Case(NamedTuple):
    golden: dict[str, Any]
    tensors: dict[str, Tensor]
    target: Path
    draft: Path


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    found = {}
    for name in CASES:
        folder, path = GOLDENS / name, tmp_path_factory.mktemp(name)
        golden = json.loads((folder / "golden.json").read_text())
        target = serve_golden(folder / golden["target"], path / "target")
        draft = serve_golden(folder / "draft", path / "draft")
        found[name] = Case(golden, load_file(folder / "golden.safetensors"), target, draft)
    return found


@cache
def models(path: Path) -> tuple[CausalModel, Kernels]:
    kernels = select_kernels()
    return load_model(describe_model(str(path)), torch.float32, 512, kernels), kernels


def loaded(case: Case) -> FeatureHead:
    model, kernels = models(case.target)
    module = eagle if case.golden["method"] == "eagle" else eagle3
    head = module.Proposer(module.Options(str(case.draft)), TargetInfo(model.config, torch.float32, 512))
    head.load(Runtime(kernels, BLOCKS, SIZE, 2048, model, ()))
    return head


def span_after(before: Sequence[int], first: int, **asked: int) -> Span:
    """Return a span of all tokens before the newest, in the blocks from `first` on, from which a head is to draft."""
    ask, blocks = CatchUp(unseen=tuple(before), follow=True, **asked), tuple(range(first, BLOCKS))
    params = SamplingParams(temperature=0)
    return Span(0, tuple(before), 0, blocks, 0, params, sample=True, remaining=99, catch_up=ask)


def twin_of(case: Case) -> Twin:
    target = load_file(case.target / "model.safetensors")
    return Twin(case.draft, target["model.embed_tokens.weight"], target["lm_head.weight"])


@pytest.mark.parametrize("name", CASES)
def test_the_targets_states(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    model, kernels = models(case.target)
    runner, head = ModelRunner(model, kernels, BLOCKS, SIZE), loaded(case)
    if head.taps:
        assert list(head.taps) == case.golden["hidden_input"]["aux_layers_after_k_blocks"]
    runner.tap(head.taps)
    for j, prefix in enumerate(case.golden["prefixes"]):
        tokens = prefix["input_ids"][:-1]
        hidden = runner.forward(flatten([Segment(tokens, 0, range(BLOCKS))], SIZE))
        found = torch.cat(list(head.sources(hidden, runner.tapped)), 1)
        torch.testing.assert_close(found, case.tensors[f"p{j}.target_hidden"], **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_the_twin(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    twin = twin_of(case)
    for j, prefix in enumerate(case.golden["prefixes"]):
        known = case.tensors[f"p{j}.target_hidden"]
        states = twin.foresee(torch.tensor(prefix["input_ids"][1:]), twin.states(known))
        torch.testing.assert_close(states.float(), case.tensors[f"p{j}.draft_first_hidden"], **CLOSE)
        tokens, logits = twin.chain(prefix["input_ids"], known, LENGTH)
        assert tokens == prefix["chain_tokens"]
        torch.testing.assert_close(torch.stack(logits).float(), case.tensors[f"p{j}.chain_logits"], **CLOSE)


@pytest.mark.parametrize("recorded", [False, True], ids=["plainly", "recorded"])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_chains(
    cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch, name: str, recorded: bool
) -> None:
    """With the golden's own states: of all pairs at once, then along the chain."""
    case = cases[name]
    head = loaded(case)
    scored: list[Tensor] = []
    kept: list[Tensor] = []
    score, keep = head.logits, head._run_known_pairs
    if not recorded:
        monkeypatch.setattr(head._expander.recorder, "_usable", False)
        monkeypatch.setattr(head, "logits", lambda state: scored.append(score(state).clone()) or scored[-1])
    monkeypatch.setattr(head, "_run_known_pairs", lambda *given: kept.append(keep(*given).clone()) or kept[-1])
    for j, prefix in enumerate(case.golden["prefixes"]):
        *before, newest = prefix["input_ids"]
        known = case.tensors[f"p{j}.target_hidden"]
        parts = known.chunk(max(len(head.taps), 1), 1)
        span = span_after(before, j, budget=LENGTH)
        for _ in range(2):
            scored.clear()
            proposal = head.propose([span], [Verdict((newest,))], parts[0].contiguous(), torch.stack(parts))[0]
            assert list(proposal.draft.tokens) == prefix["chain_tokens"]
            assert proposal.state.computed == len(before) + 1
            chain = case.tensors[f"p{j}.chain_logits"]
            assert proposal.draft.probs == pytest.approx(chain.softmax(-1).max(-1).values.tolist(), abs=1e-3)
            torch.testing.assert_close(kept[-1], case.tensors[f"p{j}.draft_first_hidden"], **CLOSE)
            if not recorded:
                torch.testing.assert_close(torch.cat(scored), chain, **CLOSE)
                torch.testing.assert_close(score(kept[-1]), case.tensors[f"p{j}.draft_first_logits"], **CLOSE)


def paths_of(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Return what stands on the way to each node, in some order."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return sorted(found)


@pytest.mark.parametrize("name", CASES)
def test_trees(cases: dict[str, Case], name: str) -> None:
    """The same nodes as EAGLE-2's dynamic tree: four a level, the fifteen most worthy of all."""
    case = cases[name]
    head = loaded(case)
    for j, prefix in enumerate(case.golden["prefixes"]):
        *before, newest = prefix["input_ids"]
        parts = case.tensors[f"p{j}.target_hidden"].chunk(max(len(head.taps), 1), 1)
        for depth in (3, 4):
            golden = prefix[f"tree_d{depth}"]
            span = span_after(before, j, budget=depth + 1, width=4, nodes=15)
            for _ in range(2):  # recorded, then replayed
                draft = head.propose([span], [Verdict((newest,))], parts[0].contiguous(), torch.stack(parts))[0].draft
                # The reference's list begins with the root.
                expected = paths_of(golden["tokens"][1:], [parent - 1 for parent in golden["parents"][1:]])
                assert paths_of(draft.tokens, draft.parents) == expected
                assert draft.parents[0] == -1
                assert draft.tokens[0] == prefix["chain_tokens"][0]


@pytest.mark.parametrize("name", ["eagle1", "eagle3_hub"])  # of which the reference has any
def test_generations_with_trees(cases: dict[str, Case], name: str) -> None:
    """Every tree of a whole generation, what was accepted of it, and what was emitted."""
    case = cases[name]
    for run in case.golden["tree_generate"]:
        tree = {"width": run["top_k"], "depth": run["depth"] + 1}
        llm, request = _begun(case, run["prompt"], tree=tree, num_speculative_tokens=run["total_tokens"] - 1)
        for expected in run["rounds"]:
            newest, *drafted = expected["tree_tokens"]
            assert request.output_tokens[-1] == newest
            assert sorted(request.drafting.pending.tokens) == sorted(drafted)
            _assert_step(llm.engine, request, expected)
        llm.engine.abort(request)
        llm.engine.check()


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 6, "block_size": 3}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_generations(cases: dict[str, Case], name: str, options: dict[str, int]) -> None:
    """Every draft of a whole generation, what was accepted of it, and what was emitted."""
    case = cases[name]
    for run in case.golden["chain_generate"]:
        llm, request = _begun(case, run["prompt"], options, num_speculative_tokens=run["k"])
        assert llm.engine.methods[1] == case.golden["method"]
        assert request.output_tokens == [run["first_token"]]
        for expected in run["rounds"]:
            assert list(request.drafting.pending.tokens) == expected["draft"]
            _assert_step(llm.engine, request, expected)
        _until(llm.engine, request, 32)
        assert request.output_tokens[:32] == run["target_greedy_32"]
        assert request.output_tokens[: len(run["tokens"])] == run["tokens"]
        llm.engine.abort(request)
        llm.engine.check()


def _begun(
    case: Case, prompt: list[int], options: dict[str, int] | None = None, **speculative: Any
) -> tuple[LLM, Any]:
    """Return an engine and a request whose first token is there."""
    config = {"model": str(case.draft), "lengths": "fixed", **speculative}
    llm = LLM(str(case.target), dtype="float32", max_model_len=128, speculative_config=config, **(options or {}))
    (request,) = llm.engine.add(prompt, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    _until(llm.engine, request, 1)
    return llm, request


def _assert_step(engine: Engine, request: Any, expected: dict[str, Any]) -> None:
    before, accepted = len(request.output_tokens), request.counts.draft_stats.accepted
    engine.step()
    assert request.output_tokens[before:] == expected["emitted"]
    assert request.counts.draft_stats.accepted - accepted == expected["accepted"]


def _until(engine: Engine, request: Any, count: int) -> None:
    while len(request.output_tokens) < count:
        engine.step()
