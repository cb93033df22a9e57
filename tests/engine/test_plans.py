"""Plans are data: kept, sent and executed again they decide the same."""

from typing import Any

import msgspec
import pytest
from asking import Ask, half_repeating, run, with_params
from conftest import MakeLLM, Pair, proposer_options
from hypothesis import given
from hypothesis import strategies as st

from parlay import LLM, SamplingParams
from parlay.sampling.bound_processor import OutputTokens
from parlay.types.plan import Plan, StepOutput

decode_plan = msgspec.msgpack.Decoder(Plan).decode


def recorded(llm: LLM, asks: list[Ask]) -> list[tuple[bytes, StepOutput]]:
    """Complete some requests; return every step's plan as bytes, and what came of it."""
    worker, steps = llm.engine._worker, []
    finish = worker.finish

    def note() -> StepOutput:
        assert worker.oldest is not None
        data = msgspec.msgpack.encode(worker.oldest)
        output = finish()
        steps.append((data, output))
        return output

    worker.finish = note  # type: ignore[method-assign]
    run(llm, asks)
    worker.finish = finish  # type: ignore[method-assign]
    return steps


@pytest.mark.parametrize("method", [None, "suffix", "draft_model", "eagle3"])
def test_a_recorded_run_is_replayed(make_llm: MakeLLM, models: dict[str, Pair], method: str | None) -> None:
    """By another engine's worker, which knows of no request: the same verdicts and proposals."""
    config: dict[str, Any] | None = None
    if method is not None:
        tree = {} if method == "suffix" else {"tree": {"width": 2, "depth": 3}}
        config = {
            "method": method,
            "num_speculative_tokens": 6,
            **proposer_options(method, models["float32"]),
            **tree,
        }
    asks = [with_params(ask, top_k=(0, 20)[i % 2], prompt_logprobs=1) for i, ask in enumerate(half_repeating(0.8))]
    engines = [make_llm(speculative_config=config, max_num_batched_tokens=40, num_blocks=40) for _ in range(2)]
    steps = recorded(engines[0], asks)
    assert len(steps) > 20
    for data, output in steps:
        found = engines[1].engine._worker.execute(decode_plan(data))
        assert (found.verdicts, found.proposals) == (output.verdicts, output.proposals)


def test_distributions_stay_with_the_worker(make_llm: MakeLLM, models: dict[str, Pair]) -> None:
    """What drawn guesses were drawn from is numbers in a plan, and goes with the request."""
    config = {
        "method": "draft_model",
        "verification": "rejection",
        "num_speculative_tokens": 4,
        **proposer_options("draft_model", models["float32"]),
    }
    llm = make_llm(speculative_config=config)
    drawn = [span.draft for data, _ in recorded(llm, half_repeating(0.9)) for span in decode_plan(data).spans]
    assert any(draft.q is not None for draft in drawn)
    assert all(type(number) is int for draft in drawn for number in draft.q or ())
    run(llm, half_repeating(0.9)[:1])  # those that ended are forgotten with the next plan
    assert len(llm.engine._worker._distributions) <= 1


def test_processors_go_with_their_requests(make_llm: MakeLLM) -> None:
    llm = make_llm("ngram", 3)
    engine = llm.engine
    params = SamplingParams(temperature=0, max_tokens=5, repetition_penalty=1.2)
    requests = [request for text in ("abc", "de", "f") for request in engine.add(text, params)]
    assert sorted(engine._scheduler.processors) == [r.request_id for r in requests]
    engine.abort(requests[1])
    while engine.busy:
        engine.step()
    assert not engine._scheduler.processors


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 8), st.slices(8), st.integers(-9, 9))
def test_an_output_is_what_a_copy_would_be(tokens: list[int], start: int, part: slice, place: int) -> None:
    start = min(start, len(tokens))
    view, copy = OutputTokens(tokens, start), tokens[start:]
    assert [*view] == copy
    assert len(view) == len(copy)
    assert list(view[part]) == copy[part]
    if -len(copy) <= place < len(copy):
        assert view[place] == copy[place]
    else:
        with pytest.raises(IndexError):
            view[place]
    tokens.append(5)
    assert [*view] == [*copy, 5]
