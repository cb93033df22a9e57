"""Proposers that draft from the last hidden state: whatever came before, it is the right one.

What holds for EAGLE-type heads as well, which draft from all states, is here too; the rest in `test_eagle.py`.
A draft follows from the tokens that are known and from nothing else. So every draft that an engine makes, by whatever
way it came there, is compared with the reference's on hidden states of the whole text computed at once.
"""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import (
    Ask,
    accepted,
    assert_same,
    assert_whole,
    preempt_every_third_step,
    run,
    wish_in_turn,
    with_params,
)
from conftest import MakeLLM, Pair, Plain
from crossing import crossed
from eagles import assert_right as assert_pairs_right
from fitting import fitted
from heads import (
    ChooseAll,
    medusa_logits,
    medusa_states,
    mlp_chain,
    mlp_config,
    random_medusa,
    random_mlp,
    write_head,
    write_medusa,
)
from safetensors.torch import load_file
from torch import Tensor
from watching import Known, Noted, Watch, asks, expand, head_of, start

from parlay import LLM, CapacityError, ConfigError, RequestOutput, SamplingParams
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.proposers import heads as shared
from parlay.proposers.feature_head import FeatureHead
from parlay.runner.batch import Segment, flatten
from parlay.types.draft import Draft

METHODS = ("medusa", "mlp_speculator")
PAIRED = ("eagle", "eagle3")
EVERY = (*METHODS, *PAIRED)
Twin = Callable[[Tensor, Tensor, ChooseAll], tuple[list[Tensor], list[Tensor]]]


def twin(path: Path, llm: LLM) -> Twin:
    """Return what drafts, slowly, from hidden states and tokens: the guesses, and the logits that chose them."""
    config = json.loads((path / "config.json").read_text())
    if "n_predict" in config:
        tensors = load_file(path / "model.safetensors")
        return lambda hidden, token, choose: mlp_chain(config, tensors, hidden, token, choose)
    weights = torch.load(path / "medusa_lm_head.pt")
    count = len({name.split(".")[0] for name in weights})

    def medusa(hidden: Tensor, token: Tensor, choose: ChooseAll) -> tuple[list[Tensor], list[Tensor]]:
        if "0.1.weight" in weights:
            logits = medusa_logits(weights, hidden, count, 1)
        else:
            logits = [llm.engine._worker._runner.model.logits(s) for s in medusa_states(weights, hidden, count, 1)]
        return [choose(step, rows) for step, rows in enumerate(logits)], logits

    return medusa


def assert_right(llm: LLM, path: Path, drafts: dict[Known, Noted]) -> None:
    """Compare drafts, by the known tokens that each follows, with the reference's."""
    if isinstance(head_of(llm), FeatureHead):
        assert_pairs_right(llm, path, drafts)
        return
    runner, propose = llm.engine._worker._runner, twin(path, llm)
    states: dict[Known, Tensor] = {}  # of the tokens before each text's last
    for text in sorted(drafts, key=len, reverse=True):
        if text not in states:
            blocks = range(-(-len(text) // runner.block_size))
            hidden = runner.forward(flatten([Segment(text[:-1], 0, blocks)], runner.block_size)).clone()
            states |= {text[: end + 1]: hidden[end - 1] for end in range(1, len(text))}
    known, noted = list(drafts), list(drafts.values())

    def choose(step: int, logits: Tensor) -> Tensor:
        rows = zip(known, noted, logits, strict=True)
        return torch.tensor([own.choose(row, len(text) + step) for text, own, row in rows])

    tokens, logits = propose(torch.stack([states[k] for k in known]), torch.tensor([k[-1] for k in known]), choose)
    for i, (text, own) in enumerate(drafts.items()):
        draft = own.draft
        assert draft.tokens == tuple(int(t[i]) for t in tokens[: len(draft)]), f"after {len(text)} tokens"
        assert draft.is_chain
        probs = [own.likely(row[i], token) for row, token in zip(logits, draft.tokens, strict=False)]
        assert draft.probs == pytest.approx(probs, rel=1e-3)


SMALL = (
    {},
    {"max_num_batched_tokens": 7},
    {"max_num_batched_tokens": 23, "block_size": 3},
    {"block_size": 1},
    {"max_num_seqs": 2},
)


@crossed(options=SMALL, method=EVERY)
def test_in_chunks_and_blocks_of_any_size(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, method: str, options: dict[str, int]
) -> None:
    llm = make_llm(method, 5, enable_prefix_caching=method in METHODS, **options)
    watch = Watch().over(llm)
    answers = run(llm, asks(), watch)
    assert_same(answers, plain("float32", asks()))
    assert accepted(answers) > (5 if options.get("max_num_batched_tokens") != 7 else 0)
    assert method in METHODS or not any(watch.rerun)
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


@pytest.mark.parametrize("method", METHODS)
def test_from_a_cached_prefix(make_llm: MakeLLM, models: dict[str, Pair], method: str) -> None:
    """Speculation on or off when it was computed; all but one token of some prompts; several completions of one."""
    llm = make_llm(method, 4, block_size=4)
    first = run(llm, asks(speculative={"enabled": False}))
    watch = Watch()
    whole = [Ask(ask.prompt + a.token_ids[:8], ask.params) for ask, a in zip(asks(), first, strict=True)]
    answers = run(llm, [*asks(), *whole, *[with_params(ask, n=3) for ask in asks()]], watch)
    assert sum(a.metrics.cached_tokens for a in answers) > 300
    assert any(a.metrics.cached_tokens == len(ask.prompt) - 1 for ask, a in zip(whole, answers[6:], strict=False))
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


@crossed(method=EVERY, caching=(True, False))
def test_after_preemption(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, method: str, caching: bool
) -> None:
    llm = make_llm(method, 4, block_size=4, enable_prefix_caching=caching)
    watch = Watch(preempt_every_third_step())
    answers = run(llm, asks(), watch)
    assert_same(answers, plain("float32", asks()))
    assert sum(a.metrics.preemptions for a in answers) > 1
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


@pytest.mark.parametrize("method", METHODS)
def test_switched_off_and_on_again(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, method: str) -> None:
    switch = wish_in_turn(None, {"enabled": False}, {"num_speculative_tokens": 1}, None, every=2)
    llm, watch = make_llm(method, 4), Watch(switch)
    answers = run(llm, asks(), watch)
    assert_same(answers, plain("float32", asks()))
    lengths = {len(noted.draft) for noted in watch.drafts.values()}
    assert {1, 4} <= lengths
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


@pytest.mark.parametrize("method", EVERY)
def test_when_blocks_run_out(make_llm: MakeLLM, models: dict[str, Pair], method: str) -> None:
    llm, watch = make_llm(method, 4, block_size=4, max_model_len=64, num_blocks=18), Watch()
    answers = run(llm, asks(), watch)
    assert any(a.metrics.preemptions for a in answers)
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


@pytest.mark.parametrize("name", [*EVERY, "medusa with the target's head", "a tied mlp_speculator"])
def test_more_requests_than_a_turn_takes(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    own = (f"methods.{method}.proposer" for method in EVERY if method != "eagle")
    for module in ("expander", "branching", "heads", "feature_head", "draft_output", *own):
        monkeypatch.setattr(f"parlay.proposers.{module}.MOST_ROWS", 2)
    if name.startswith("medusa with"):
        path = write_medusa(tmp_path, random_medusa(outputs=False))
    elif name.startswith("a tied"):
        config = mlp_config(tie_weights=True)
        path = write_head(tmp_path, config, random_mlp(config))
    else:
        path = fitted(name, models["float32"].target)
    llm = make_llm(speculative_config={"model": str(path)})
    watch = Watch().over(llm)
    run(llm, asks(), watch)
    assert len(watch.drafts) > 20
    assert_right(llm, path, watch.drafts)


@crossed(method=EVERY, kernels=("native", "reference"))
def test_recorded_or_not(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, method: str, kernels: str
) -> None:
    monkeypatch.setenv("PARLAY_KERNELS", kernels)
    llm, watch = make_llm(method, 3), Watch()
    run(llm, asks(max_tokens=7)[:4] if kernels == "reference" else asks(), watch)
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


def test_where_drafts_begin() -> None:
    """Only for requests that go on, from the row of the last confirmed node."""
    from parlay.types.plan import CatchUp, Span, Verdict

    def span(tokens: int, nodes: int = 0, budget: int = 4, **changes: Any) -> Span:
        given = {"sample": True, "remaining": 9, "catch_up": CatchUp(budget=budget), **changes}
        return Span(0, (1,) * tokens, 0, (), 0, SamplingParams(), draft=Draft.chain([2] * nodes, "x"), **given)

    spans = [
        span(3),  # rows 0 to 2
        span(1, 4),  # 3 to 7
        span(1, 4, budget=2),  # 8 to 12
        span(5, sample=False),  # 13 to 17
        span(1, budget=0),
        span(1, remaining=2),
        span(1, remaining=1),
        span(1, stop_ids=frozenset({9})),
        span(2, 2, remaining=5),  # 22 to 25
    ]
    verdicts = [Verdict((5,)), Verdict((5, 6, 7), (0, 2)), Verdict((8,)), Verdict(), *[Verdict((5,))] * 3]
    verdicts += [Verdict((9,)), Verdict((4, 4, 3), (0, 1))]
    found = [(s.index, s.row, s.emitted[-1], s.position, s.length) for s in shared.starts(spans, verdicts, 3)]
    assert found == [(0, 2, 5, 4, 3), (1, 6, 7, 4, 3), (2, 8, 8, 2, 2), (8, 25, 3, 5, 1)]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
@pytest.mark.parametrize("method", EVERY)
def test_states_that_are_no_numbers(make_llm: MakeLLM, method: str, value: float) -> None:
    """Guesses are tokens then too, and their probabilities can be reckoned with."""
    begin = start(1, 4, token=4, position=3, blocks=range(4))
    ((_, draft),) = expand(head_of(make_llm(method, 4)), [begin], torch.full((2, 64), value))
    assert len(draft) == 4
    assert all(0 <= token < 257 for token in draft.tokens)
    assert draft.probs is not None
    assert all(0 <= p <= 1 for p in draft.probs)


# --------------------------------------------------------------------------------------------------- lengths, memory


@pytest.mark.parametrize(("asked", "most"), [(None, 3), (2, 2), (8, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_a_draft_is_as_long_as_the_head_can_guess(
    make_llm: MakeLLM, tmp_path: Path, method: str, asked: int | None, most: int
) -> None:
    head = random_medusa() if method == "medusa" else random_mlp(mlp_config())
    path = write_medusa(tmp_path, head) if method == "medusa" else write_head(tmp_path, mlp_config(), head)
    config = {"model": str(path)} | ({} if asked is None else {"num_speculative_tokens": asked})
    watch = Watch()
    run(make_llm(speculative_config=config), asks(), watch)
    assert max(len(noted.draft) for noted in watch.drafts.values()) == most


@pytest.mark.parametrize("method", EVERY)
def test_memory_is_accounted_for(make_llm: MakeLLM, models: dict[str, Pair], method: str) -> None:
    head, stored = head_of(make_llm(method)), fitted(method, models["float32"].target)
    pickled = stored / "medusa_lm_head.pt"
    tensors = torch.load(pickled) if pickled.exists() else load_file(stored / "model.safetensors")
    numbers = sum(t.numel() for t in tensors.values() if t.dtype is torch.float32)
    assert numbers * 4 <= head.weight_bytes < numbers * 4 + 100_000
    if method in PAIRED:
        assert head.cache.bytes_per_token == 2 * head.config.num_kv_heads * 16 * 4
    with pytest.raises(CapacityError, match="weights"):
        make_llm(method, gpu_memory_utilization=1e-6)


@pytest.mark.parametrize("method", EVERY)
def test_nothing_of_a_request_is_kept(make_llm: MakeLLM, method: str) -> None:
    llm = make_llm(method, 4)
    head = head_of(llm)

    def numbers() -> int:
        return sum(v.numel() for v in vars(head).values() if isinstance(v, Tensor))

    before = numbers()
    for stop in (2, 5, 99):
        steps = count()

        def abort(engine: Engine, requests: list[Request], stop: int = stop, steps: Any = steps) -> None:
            if next(steps) == stop:
                for request in requests:
                    engine.abort(request)

        run(llm, asks(), abort)
        assert_whole(llm.engine)
    assert numbers() == before
    passes = head._expander.recorder._passes
    if method in PAIRED:
        assert len(passes) < 100
        return
    assert all(isinstance(v, int | str) for key in passes if isinstance(key, tuple) for v in key)
    assert len(passes) <= 4 * len(asks())


@pytest.mark.parametrize("method", METHODS)
def test_the_method_is_found_and_named(make_llm: MakeLLM, models: dict[str, Pair], method: str) -> None:
    path = fitted(method, models["float32"].target)
    llm = make_llm(speculative_config={"model": str(path), "num_speculative_tokens": 2})
    assert llm.engine.methods == ("none", method)
    outputs: list[RequestOutput] = llm.generate([asks()[4].prompt], asks()[4].params)
    assert set(outputs[0].outputs[0].sources) <= {"target", method}
    assert llm.engine.snapshot().methods[method].drafted > 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "'model' is required"),
        ({"model": 3}, "model"),
        ({"model": "x", "draft_tensor_parallel_size": 2}, "=2 is no divisor of tensor_parallel_size=1; give one"),
        ({"model": "x", "modle": "y"}, "did you mean 'model'"),
        ({"model": "x", "num_speculative_tokens": 0}, "at least 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", METHODS)
def test_bad_options(
    make_llm: MakeLLM, models: dict[str, Pair], method: str, options: dict[str, Any], match: str
) -> None:
    if options.get("model") == "x":
        options = {**options, "model": str(fitted(method, models["float32"].target))}
    with pytest.raises(ConfigError, match=match):
        make_llm(speculative_config={"method": method, **options})
