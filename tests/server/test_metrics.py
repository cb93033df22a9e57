"""What `/metrics` tells: names, types, values, and that no counter ever falls."""

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import write_llama
from prometheus_client.parser import text_string_to_metric_families

from parlay import LLM, SamplingParams
from parlay.server.metrics import Metrics, names
from parlay.types.output import RequestMetrics
from parlay.types.snapshot import EngineSnapshot

SNAPSHOT = EngineSnapshot(
    started=100.0,
    method="ngram",
    running=2,
    waiting=3,
    cache_usage=0.25,
    forward_passes=9,
    prompt_tokens=40,
    cached_tokens=16,
    looked_up_tokens=32,
    emitted=30,
    preemptions=1,
    drafts=8,
    undrafted=4,
    drafted=(("ngram", 20), ("grammar", 3)),
    accepted=(("ngram", 10), ("grammar", 3)),
    accepted_per_position=(8, 5),
    draft_seconds=0.5,
    forward_seconds=2.0,
    verify_seconds=0.25,
    schedule_seconds=0.125,
)

# From vLLM's documentation of its production metrics, with `_total` where they are counters.
SHARED = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:request_success": "counter",
    "vllm:spec_decode_num_drafts": "counter",
    "vllm:spec_decode_num_draft_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
}


def read(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every series by name and the values of its labels besides the model's."""
    found = {}
    for family in text_string_to_metric_families(metrics.expose().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny"
            assert labels.pop("engine") == "0"
            key = (sample.name, tuple(labels[name] for name in sorted(labels)))
            assert key not in found
            found[key] = sample.value
    return found


def test_names_and_types() -> None:
    metrics = Metrics("tiny")
    metrics.update(SNAPSHOT)
    families = list(text_string_to_metric_families(metrics.expose().decode()))
    types = {family.name: family.type for family in families}
    assert {name: types.get(name) for name in SHARED} == SHARED
    assert all(family.documentation for family in families)
    assert {sample.name for family in families for sample in family.samples} == names()
    assert not [line for line in metrics.expose().decode().splitlines() if "_created" in line]


def test_values() -> None:
    metrics = Metrics("tiny")
    metrics.update(SNAPSHOT)
    found = read(metrics)
    assert found["vllm:num_requests_running", ()] == 2
    assert found["vllm:num_requests_waiting", ()] == 3
    assert found["vllm:kv_cache_usage_perc", ()] == 0.25
    assert found["vllm:spec_decode_num_drafts_total", ()] == 8
    assert found["vllm:spec_decode_num_draft_tokens_total", ()] == 23
    assert found["vllm:spec_decode_num_accepted_tokens_total", ()] == 13
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", ("0",)] == 8
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", ("1",)] == 5
    assert found["vllm:prefix_cache_hits_total", ()] == 16
    assert found["parlay:steps_without_draft_total", ("ngram",)] == 4
    assert found["parlay:tokens_saved_total", ("ngram",)] == 10
    assert found["parlay:tokens_saved_total", ("grammar",)] == 3
    seconds = {key[1][1]: value for key, value in found.items() if key[0] == "parlay:step_seconds_total"}
    assert seconds == {"draft": 0.5, "forward": 2.0, "verify": 0.25, "schedule": 0.125}


def test_no_counter_falls_when_the_engine_starts_anew() -> None:
    metrics, last = Metrics("tiny"), {}
    starts = [
        replace(SNAPSHOT, started=s, emitted=e) for s, e in [(1.0, 10), (1.0, 30), (2.0, 5), (3.0, 0), (3.0, 9)]
    ]
    # A restart may load another method, of which other counters tell.
    starts += [EngineSnapshot(started=4.0, method="none"), EngineSnapshot(started=5.0, method="ngram", emitted=1)]
    emitted = []
    for snapshot in starts:
        metrics.update(snapshot)
        found = {key: value for key, value in read(metrics).items() if key[0].endswith("_total")}
        assert set(last) <= set(found)
        assert all(found[key] >= value for key, value in last.items())
        last = found
        emitted.append(found["vllm:generation_tokens_total", ()])
    assert emitted == [10, 30, 35, 35, 44, 44, 45]
    assert last["parlay:engine_restarts_total", ()] == 4


def test_observations() -> None:
    metrics = Metrics("tiny")
    metrics.observe_first_token(0.05)
    metrics.observe_tokens(4, 0.08)
    metrics.observe_tokens(0, 5.0)
    metrics.observe_finished(
        "stop", RequestMetrics(emitted=11, arrival=10.0, admitted=10.5, first_token=11.0, finished=13.0)
    )
    metrics.observe_finished("abort", RequestMetrics(arrival=20.0, finished=21.0))
    metrics.observe_finished("error")
    found = read(metrics)
    sums = {name[5:-12]: value for (name, _), value in found.items() if name.endswith("_seconds_sum")}
    assert sums["time_to_first_token"] == 0.05
    assert sums["inter_token_latency"] == pytest.approx(0.08)
    assert found["vllm:inter_token_latency_seconds_count", ()] == 4
    assert found["vllm:inter_token_latency_seconds_bucket", ("0.01",)] == 0
    assert found["vllm:inter_token_latency_seconds_bucket", ("0.025",)] == 4
    assert found["vllm:inter_token_latency_seconds_bucket", ("+Inf",)] == 4
    assert sums["e2e_request_latency"] == pytest.approx(4.0)
    assert sums["request_queue_time"] == pytest.approx(0.5)
    assert sums["request_prefill_time"] == pytest.approx(0.5)
    assert sums["request_decode_time"] == pytest.approx(2.0)
    assert sums["request_inference_time"] == pytest.approx(2.5)
    assert sums["request_time_per_output_token"] == pytest.approx(0.2)
    ended = {key[1][0]: value for key, value in found.items() if key[0] == "vllm:request_success_total"}
    assert ended == {"stop": 1, "length": 0, "abort": 1, "error": 1}


def test_a_border_belongs_to_its_bucket() -> None:
    metrics = Metrics("tiny")
    metrics.observe_first_token(0.02)
    metrics.observe_first_token(1e9)
    found = read(metrics)
    assert found["vllm:time_to_first_token_seconds_bucket", ("0.01",)] == 0
    assert found["vllm:time_to_first_token_seconds_bucket", ("0.02",)] == 1
    assert found["vllm:time_to_first_token_seconds_bucket", ("2560.0",)] == 1
    assert found["vllm:time_to_first_token_seconds_bucket", ("+Inf",)] == 2


def test_before_the_engine_has_spoken() -> None:
    found = read(Metrics("tiny"))
    assert ("vllm:num_requests_running", ()) not in found
    assert found["vllm:request_success_total", ("stop",)] == 0


def test_two_servers_in_one_process() -> None:
    one, other = Metrics("tiny"), Metrics("tiny")
    one.observe_finished("stop")
    assert read(other)["vllm:request_success_total", ("stop",)] == 0


def test_what_an_engine_counts_is_what_its_requests_say(tmp_path: Path) -> None:
    llm = LLM(
        str(write_llama(tmp_path, scale=2.0)),
        speculative_config={"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2},
        max_num_seqs=2,
        enable_prefix_caching=True,
    )
    prompts = [[5, 6, 7, 8] * 10, [5, 6, 7, 8] * 10, [9, 3] * 12, [1, 2, 3, 4, 5]]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=24, ignore_eos=True), use_tqdm=False)
    every = [output.outputs[0].metrics for output in outputs]
    found = llm.engine.snapshot()
    assert found.method == "ngram"
    assert (found.running, found.waiting, found.cache_usage) == (0, 0, 0.0)
    assert found.emitted == sum(m.emitted for m in every) == 96
    assert found.prompt_tokens == found.looked_up_tokens == 40 + 40 + 24 + 5
    assert found.cached_tokens == sum(m.cached_tokens for m in every)
    assert found.drafts == sum(m.drafts for m in every) > 0
    assert found.undrafted == sum(m.steps - m.drafts for m in every) > 0
    assert found.drafted == (("ngram", sum(m.drafted for m in every)),)
    assert found.accepted == (("ngram", sum(m.accepted for m in every)),)
    assert sum(found.accepted_per_position) == found.accepted[0][1] > 0
    assert found.draft_seconds > 0
    assert found.forward_passes == llm.engine.stats.steps
    assert all(m.arrival <= m.admitted < m.first_token < m.finished for m in every)
    assert any(m.admitted > every[0].first_token for m in every)  # two at once: the others waited
    metrics = Metrics("tiny")
    metrics.update(found)
    assert read(metrics)["vllm:generation_tokens_total", ()] == 96
