"""`metrics.speculative_decoding`: what vLLM's clients read of each answer, and where it stands."""

from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import write_llama
from hypothesis import given
from hypothesis import strategies as st
from serving import GUESSING, Live, engine_of

from parlay import AsyncLLM
from parlay.server.errors import ApiError
from parlay.server.openai.fields import check_model
from parlay.server.openai.usage import request_metrics, speculative_decoding
from parlay.types.output import CompletionOutput, RequestMetrics, RequestOutput

REPEATING: dict[str, Any] = {"prompt": [5, 6, 7, 8] * 8, "max_tokens": 40, "temperature": 0, "ignore_eos": True}


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(0, 5))
def test_the_histogram_counts_steps(accepted: list[int], more: int) -> None:
    """It is made of counts by depth, and must be the one that counting steps gives."""
    depths = tuple(sum(n > depth for n in accepted) for depth in range(max(accepted, default=0)))
    drafted = sum(accepted) + more * len(accepted)
    found = speculative_decoding(
        RequestMetrics(drafts=len(accepted), drafted=drafted, accepted=sum(accepted), accepted_per_position=depths)
    )
    assert found["acceptance_histogram"] == [accepted.count(n) for n in range(max(accepted, default=0) + 1)]
    assert found["num_spec_steps"] == len(accepted) == sum(found["acceptance_histogram"])
    assert found["num_accepted_draft_tokens"] == sum(n * c for n, c in enumerate(found["acceptance_histogram"]))
    if accepted:
        assert found["mean_acceptance_length"] == 1 + sum(accepted) / len(accepted)
    else:
        assert (found["mean_acceptance_length"], found["draft_acceptance_rate"]) == (1, 0)


@pytest.mark.parametrize(
    ("mode", "lossless"), [("coupled", True), ("rejection", True), ("block", True), ("typical", False)]
)
def test_what_decided_is_said(mode: str, lossless: bool) -> None:
    found = speculative_decoding(RequestMetrics(drafts=1, drafted=2, accepted_per_position=(), verification=mode))
    assert (found["verification"], found["lossless"]) == (mode, lossless)


def test_of_several_completions_there_is_none() -> None:
    one = CompletionOutput(0, "", (), (), metrics=RequestMetrics(drafts=1, drafted=2, accepted_per_position=()))
    alone = RequestOutput(0, None, (), (one,))
    nothing = {"speculative_decoding": None}
    assert request_metrics([alone], speculates=True)["speculative_decoding"]["acceptance_histogram"] == [1]
    assert request_metrics([alone, alone], speculates=True) == nothing
    assert request_metrics([RequestOutput(0, None, (), (one, one))], speculates=True) == nothing
    plain = RequestOutput(0, None, (), (CompletionOutput(0, "", (), ()),))
    assert request_metrics([plain], speculates=False) == nothing
    assert request_metrics([plain], speculates=True)["speculative_decoding"]["acceptance_histogram"] == [0]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    model = write_llama(tmp_path_factory.mktemp("metrics") / "target", seed=2, scale=7.0, calm=0.2)
    with engine_of(model, served_model_name=("small", "tiny"), speculative_config=GUESSING) as made:
        yield made


@pytest.fixture(scope="module")
def live(engine: AsyncLLM) -> Iterator[Live]:
    with Live(engine) as server:
        yield server


def test_a_request_asks_for_it(live: Live) -> None:
    assert "metrics" not in live.post("/v1/completions", REPEATING).json()
    body = live.post("/v1/completions", {**REPEATING, "return_metrics": True}).json()
    found, usage = body["metrics"]["speculative_decoding"], body["usage"]
    assert found["num_accepted_draft_tokens"] == usage["completion_tokens_details"]["accepted_prediction_tokens"] > 4
    assert found["num_draft_tokens"] == usage["speculation"]["draft_tokens"]
    assert sum(found["acceptance_histogram"]) == usage["speculation"]["drafts"]
    usage_too = {"include_usage": True}
    *chunks, last = live.events("/v1/completions", **REPEATING, return_metrics=True, stream_options=usage_too)
    assert last["metrics"]["speculative_decoding"] == found
    assert all("metrics" not in chunk for chunk in chunks)
    refused = live.post("/v1/completions", {**REPEATING, "return_metrics": True, "stream": True})
    assert refused.status_code == 400
    assert "include_usage" in refused.json()["error"]["message"]


def test_a_server_gives_it_to_everybody(engine: AsyncLLM) -> None:
    chat = {"messages": [{"role": "user", "content": "abcabcabcabc"}], "max_tokens": 5}
    with Live(engine, per_request_spec_decode_metrics="summary") as server:
        assert (
            "acceptance_histogram"
            in server.post("/v1/chat/completions", chat).json()["metrics"]["speculative_decoding"]
        )
        assert server.post("/v1/completions", REPEATING).json()["metrics"]["speculative_decoding"]["num_spec_steps"]
        several = server.post("/v1/completions", {**REPEATING, "n": 2}).json()
        assert several["metrics"] == {"speculative_decoding": None}


def test_of_a_file_its_name_and_its_stem_are_names_too() -> None:
    for name in ("/models/some-Q8_0.gguf", "some-Q8_0.gguf", "some-Q8_0", "alias", None):
        check_model(name, ("/models/some-Q8_0.gguf", "alias"))
    check_model("some", ("/models/some",))
    with pytest.raises(ApiError, match=r"'some' does not exist; use '/models/some-Q8_0.gguf' or 'alias'") as refused:
        check_model("some", ("/models/some-Q8_0.gguf", "alias"))
    assert (refused.value.status, refused.value.param) == (404, "model")


def test_each_step_of_a_detailed_answer(engine: AsyncLLM) -> None:
    with Live(engine, per_request_spec_decode_metrics="detailed") as server:
        found = server.post("/v1/completions", REPEATING).json()["metrics"]["speculative_decoding"]
        *_, last = server.events("/v1/completions", **REPEATING, stream_options={"include_usage": True})
    assert last["metrics"]["speculative_decoding"] == found
    accepted, drafted = found["per_step_accepted"], found["per_step_drafted"]
    assert len(accepted) == len(drafted) == found["num_spec_steps"] > 4
    assert all(0 <= a <= d for a, d in zip(accepted, drafted, strict=True))
    assert (sum(accepted), sum(drafted)) == (found["num_accepted_draft_tokens"], found["num_draft_tokens"])
    histogram = found["acceptance_histogram"]
    assert histogram == [accepted.count(n) for n in range(len(histogram))]
    with Live(engine, per_request_spec_decode_metrics="summary") as server:
        short = server.post("/v1/completions", REPEATING).json()["metrics"]["speculative_decoding"]
    assert short == {name: value for name, value in found.items() if not name.startswith("per_step")}


def test_each_name_is_the_model(live: Live) -> None:
    """Several names: all are listed and taken, and every answer says the first."""
    assert [model["id"] for model in live.http.get("/v1/models").json()["data"]] == ["small", "tiny"]
    assert live.http.get("/v1/models/tiny").json()["id"] == "tiny"
    for name in ("small", "tiny"):
        assert live.post("/v1/completions", {**REPEATING, "model": name}).json()["model"] == "small"
        assert live.post("/tokenize", {"prompt": "a", "model": name}).status_code == 200
    refused = live.post("/v1/completions", {**REPEATING, "model": "large"})
    assert refused.status_code == 404
    assert refused.json()["error"]["message"] == "the model 'large' does not exist; use 'small' or 'tiny'"
