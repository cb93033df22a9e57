"""Messages between the front and the engine's process: what goes in comes out."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay import EngineDeadError, EngineFaultError, ModelError, ParlayError, RequestError, SamplingParams, errors
from parlay.engine.memory import Memory
from parlay.link.protocol import (
    Abort,
    Add,
    Delta,
    EngineReady,
    Failure,
    Outputs,
    PromptScores,
    Stop,
    decode_command,
    decode_report,
    encode,
    plain_metrics,
    plain_params,
    plain_scores,
)
from parlay.types.output import Rejected, RequestMetrics
from parlay.types.plan import TokenLogprobs
from parlay.types.stats import DraftStats, StatsSnapshot

TEXT = st.text(max_size=20)
COUNT = st.integers(0, 2**63)
FLOAT = st.floats(allow_nan=False)
IDS = st.lists(COUNT, max_size=8)
SCORES = st.tuples(FLOAT, COUNT, st.lists(st.tuples(COUNT, FLOAT), max_size=3).map(tuple))
WHY = st.lists(st.tuples(TEXT, COUNT), max_size=2).map(tuple)
STEPS = st.lists(st.tuples(COUNT, COUNT), max_size=2).map(tuple)
METRICS = st.tuples(*[COUNT] * 3, IDS.map(tuple), *[COUNT] * 4, *[FLOAT] * 4, WHY, TEXT, STEPS)
METHODS = st.builds(DraftStats, drafts=COUNT, drafted=COUNT, accepted=COUNT, accepted_per_position=IDS)
STATS = st.builds(
    StatsSnapshot,
    steps=COUNT,
    forward=FLOAT,
    methods=st.dictionaries(TEXT, METHODS, max_size=2),
    finished=st.dictionaries(TEXT, COUNT, max_size=3),
    running=COUNT,
)
FAILURES = st.builds(Failure, TEXT, TEXT, st.none() | COUNT)
DELTAS = st.builds(
    Delta,
    *(COUNT, COUNT, COUNT, IDS, TEXT, st.lists(TEXT, max_size=3), st.none() | st.lists(SCORES, max_size=3)),
    *(st.sampled_from([None, "stop", "length", "abort"]), st.none() | TEXT | COUNT, METRICS),
    st.none() | st.lists(st.builds(Rejected, COUNT, COUNT, TEXT), max_size=3),
)
REPORTS = st.one_of(
    st.builds(
        EngineReady,
        *(TEXT, COUNT, COUNT, TEXT, st.lists(TEXT, max_size=3).map(tuple)),
        *(st.dictionaries(TEXT, COUNT | FLOAT, max_size=2), st.builds(Memory, COUNT, COUNT, COUNT, COUNT)),
    ),
    FAILURES,
    st.builds(
        Outputs,
        st.lists(DELTAS, max_size=3),
        st.lists(st.builds(PromptScores, COUNT, st.lists(SCORES, max_size=3)), max_size=2),
        st.lists(FAILURES, max_size=2),
        st.none() | STATS,
    ),
)
SOME = {
    "n": st.integers(1, 4),
    "temperature": st.floats(0, 10),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 2**40),
    "seed": st.none() | st.integers(-(2**63), 2**64 - 1),
    "max_tokens": st.none() | st.integers(1, 2**40),
    "stop": st.lists(st.text(min_size=1, max_size=5), max_size=3),
    "stop_token_ids": IDS,
    "logit_bias": st.none() | st.dictionaries(COUNT, st.floats(-100, 100), max_size=4),
    "logprobs": st.none() | st.integers(0, 20),
    "prediction": st.none() | TEXT | IDS,
    "return_rejected": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "structured_outputs": st.sampled_from(
        [None, {"regex": "a+"}, {"json": {"type": "object"}}, {"choice": ["ä", "b"]}, {"json_object": True}]
    ),
    "speculative": st.sampled_from([None, {"enabled": False}, {"num_speculative_tokens": 3, "method": "ngram"}]),
}
PARAMS = st.fixed_dictionaries({}, optional=SOME).map(lambda values: SamplingParams(**values))


@given(REPORTS)
def test_reports_arrive_as_they_were(report: Any) -> None:
    assert decode_report(encode(report)) == report


@given(COUNT, IDS.map(tuple), PARAMS, st.integers(-(2**63), 2**63), TEXT, st.none() | FLOAT, st.booleans())
def test_requests_arrive_as_they_were(
    key: int, prompt: Any, params: Any, priority: int, tenant: str, timeout: Any, final_only: bool
) -> None:
    command = Add(key, prompt, plain_params(params), priority, tenant, timeout, final_only)
    arrived = decode_command(encode(command))
    assert isinstance(arrived, Add)
    assert SamplingParams(**arrived.params) == params
    for name in ("key", "prompt", "priority", "tenant", "timeout", "final_only"):
        assert getattr(arrived, name) == getattr(command, name)


def test_short_commands() -> None:
    assert decode_command(encode(Abort(7))) == Abort(7)
    assert decode_command(encode(Stop())) == Stop()


def test_every_parameter_is_plain_or_refused() -> None:
    """A field added to the parameters must not get lost on the way."""
    assert plain_params(SamplingParams()) == {}
    assert set(SOME) <= {f.name for f in dataclasses.fields(SamplingParams)}
    with pytest.raises(RequestError, match="Python functions, which cannot be sent"):
        encode(Add(1, (1,), plain_params(SamplingParams(logits_processors=[lambda output, logits: logits]))))


def test_what_cannot_be_written_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="64 bits"):
        encode(Add(1, (1,), plain_params(SamplingParams(max_tokens=10**30))))
    with pytest.raises(RequestError, match="not valid Unicode"):
        encode(Add(1, (1,), {}, tenant="\ud800"))


def test_results_in_the_order_of_their_fields() -> None:
    metrics = RequestMetrics(1, 2, 3, (4, 5), 6, 7, 8, 9, 10.0, 11.0, 12.0, 13.0, (("a", 1),), "x", ((2, 1),))
    assert RequestMetrics(*plain_metrics(metrics)) == metrics
    entry = TokenLogprobs(-0.5, 3, ((7, -0.1), (8, float("-inf"))))
    assert [TokenLogprobs(*scores) for scores in plain_scores([entry])] == [entry]


@pytest.mark.parametrize("kind", [ModelError, RequestError, EngineFaultError, EngineDeadError, errors.CapacityError])
def test_errors_keep_their_type(kind: type[ParlayError]) -> None:
    error = Failure.of(kind("a sentence"), "unused", 3).error()
    assert type(error) is kind
    assert str(error) == "a sentence"


@pytest.mark.parametrize("kind", ["ValueError", "shown", "annotations", "no such"])
def test_no_other_name_becomes_an_error(kind: str) -> None:
    assert type(Failure(kind, "a sentence").error()) is ParlayError


def test_an_error_that_nobody_raised_on_purpose() -> None:
    error = Failure.of(ZeroDivisionError("boom"), "the engine could not start").error()
    assert type(error) is ParlayError
    assert str(error) == "the engine could not start (ZeroDivisionError: boom)"
