"""What `/metrics` tells: names, types, values, and that no counter ever falls."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama
from prometheus_client.parser import text_string_to_metric_families

from parlay import LLM, SamplingParams
from parlay.server.context import RequestState
from parlay.server.metrics import PrometheusMetrics, names
from parlay.server.openai.answer import _measure
from parlay.types.output import CompletionOutput, RequestMetrics, RequestOutput
from parlay.types.stats import DraftStats, StatsSnapshot

PATH = "/v1/completions"


SNAPSHOT = StatsSnapshot(
    steps=9,
    emitted=30,
    forward=2.0,
    verify=0.25,
    propose=0.5,
    schedule=0.125,
    turns=12,
    undrafted={"unlikely": 3, "no_proposal": 1},
    lengths={3: 7, 1: 1},
    faults={"eagle": 2},
    methods={"ngram": DraftStats(0, 20, 10, [6, 4]), "grammar": DraftStats(0, 3, 3, [2, 1])},
    preemptions=1,
    prompt_tokens=40,
    cached_tokens=16,
    running=2,
    waiting=3,
    blocks=8,
    blocks_used=2,
)


class Engine:
    """Tells what a test says."""

    def __init__(self) -> None:
        self.stats, self.restarts = StatsSnapshot(), 0

    def metrics(self) -> PrometheusMetrics:
        return PrometheusMetrics("tiny", "ngram", [self])


def ended(*metrics: RequestMetrics, reason: Any = "stop") -> tuple[RequestOutput, ...]:
    completions = tuple(
        CompletionOutput(i, "", (), (), finish_reason=reason, metrics=m) for i, m in enumerate(metrics)
    )
    return (RequestOutput(0, None, (1,), completions),)


# From vLLM's documentation of its production metrics, with `_total` where they are counters.
SHARED = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "parlay:state_usage_perc": "gauge",
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


def read(metrics: PrometheusMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every series by name and the values of its labels besides the model's."""
    found = {}
    for family in text_string_to_metric_families(metrics.expose()[0].decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny"
            assert labels.pop("engine") == "0"
            key = (sample.name, tuple(labels[name] for name in sorted(labels)))
            assert key not in found
            found[key] = sample.value
    return found


def test_names_and_types() -> None:
    engine = Engine()
    engine.stats = SNAPSHOT
    metrics = engine.metrics()
    metrics.observe_end(PATH, 200)
    content, kind = metrics.expose()
    assert kind.startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(content.decode()))
    types = {family.name: family.type for family in families}
    assert {name: types.get(name) for name in SHARED} == SHARED
    assert all(family.documentation for family in families)
    assert {sample.name for family in families for sample in family.samples} == names()
    assert b"_created" not in content


def test_values() -> None:
    engine = Engine()
    engine.stats, engine.restarts = SNAPSHOT, 2
    found = read(engine.metrics())
    assert found["vllm:num_requests_running", ()] == 2
    assert found["vllm:num_requests_waiting", ()] == 3
    assert found["vllm:kv_cache_usage_perc", ()] == 0.25
    assert found["vllm:prompt_tokens_total", ()] == 40
    assert found["vllm:generation_tokens_total", ()] == 30
    assert found["vllm:num_preemptions_total", ()] == 1
    assert found["vllm:prefix_cache_hits_total", ()] == 16
    assert found["vllm:spec_decode_num_drafts_total", ()] == 8
    assert found["vllm:spec_decode_num_draft_tokens_total", ()] == 23
    assert found["vllm:spec_decode_num_accepted_tokens_total", ()] == 13
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", ("0",)] == 8
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", ("1",)] == 5
    assert found["parlay:forward_passes_total", ("ngram",)] == 9
    assert found["parlay:steps_without_draft_total", ("ngram", "unlikely")] == 3
    assert found["parlay:steps_without_draft_total", ("ngram", "no_proposal")] == 1
    assert found["parlay:draft_lengths_total", ("3",)] == 7
    assert found["parlay:proposer_faults_total", ("eagle",)] == 2
    assert found["parlay:draft_tokens_total", ("grammar",)] == 3
    assert found["parlay:tokens_saved_total", ("ngram",)] == 10
    assert found["parlay:engine_restarts_total", ()] == 2
    seconds = {key[1][1]: value for key, value in found.items() if key[0] == "parlay:step_seconds_total"}
    assert seconds == {"draft": 0.5, "forward": 2.0, "verify": 0.25, "schedule": 0.125}


def test_no_counter_falls_when_the_engine_starts_anew() -> None:
    engine, last = Engine(), {}
    metrics = engine.metrics()
    told = [replace(SNAPSHOT, emitted=10), replace(SNAPSHOT, emitted=30)]
    told += [replace(SNAPSHOT, emitted=5), StatsSnapshot(emitted=6), StatsSnapshot(), StatsSnapshot(emitted=9)]
    emitted = []
    for snapshot in told:
        engine.stats = snapshot
        for _ in range(2):  # the newest one may be read again and again
            found = {key: value for key, value in read(metrics).items() if key[0].endswith("_total")}
            assert set(last) <= set(found)
            assert all(found[key] >= value for key, value in last.items())
            last = found
        emitted.append(found["vllm:generation_tokens_total", ()])
    # From 5 to 6 other counters fell: that was another engine, too.
    assert emitted == [10, 30, 35, 41, 41, 50]


def test_what_was_counted_between_two_scrapes_is_kept() -> None:
    engine = Engine()
    metrics = engine.metrics()
    for emitted in (40, 7):  # the engine dies after 40 tokens, the next one has made 7 when somebody looks
        engine.stats = StatsSnapshot(emitted=emitted)
        metrics.observe_end(PATH, 200)
    assert read(metrics)["vllm:generation_tokens_total", ()] == 47


def test_observations() -> None:
    metrics = Engine().metrics()
    metrics.observe_first(0.05, 0)
    metrics.observe_step(0.08, 4, 0)
    metrics.observe_step(5.0, 0, 0)
    whole = RequestMetrics(emitted=11, arrival=10.0, admitted=10.5, first_token=11.0, finished=13.0)
    metrics.observe_end(PATH, 200, ended(whole))
    metrics.observe_end(PATH, 200, ended(RequestMetrics(arrival=20.0, finished=21.0), reason="abort"))
    found = read(metrics)
    sums = {name[5:-12]: value for (name, _), value in found.items() if name.endswith("_seconds_sum")}
    assert sums == pytest.approx(
        {
            "time_to_first_token": 0.05,
            "inter_token_latency": 0.08,
            "e2e_request_latency": 3.0 + 1.0,
            "request_queue_time": 0.5,
            "request_prefill_time": 0.5,
            "request_decode_time": 2.0,
            "request_inference_time": 2.5,
            "request_time_per_output_token": 0.2,
        }
    )
    assert found["vllm:inter_token_latency_seconds_count", ()] == 4
    assert found["vllm:inter_token_latency_seconds_bucket", ("0.01",)] == 0
    assert found["vllm:inter_token_latency_seconds_bucket", ("0.025",)] == 4
    assert found["vllm:inter_token_latency_seconds_bucket", ("+Inf",)] == 4


def test_ends() -> None:
    metrics, nothing = Engine().metrics(), RequestMetrics()
    metrics.observe_end(PATH, 200, ended(nothing, nothing))  # n = 2
    metrics.observe_end(PATH, 200, ended(nothing, reason="length"))
    metrics.observe_end(PATH, 499, ended(nothing, reason=None))  # the client left
    metrics.observe_end(PATH, 503, ended(nothing, reason=None))  # the engine died
    metrics.observe_end(PATH, 503)
    metrics.observe_end(PATH, 503, requested=2)  # before anything was known of either
    metrics.observe_end(PATH, 499, requested=3)  # the client of an answer that was to come whole
    metrics.observe_end(PATH, 200, ended(nothing, reason=None), requested=2, failed=True)  # in the middle of a stream
    metrics.observe_end(PATH, 200, ended(nothing, reason="stop"), requested=1, failed=True)  # it was complete
    metrics.observe_end(PATH, 400, requested=1)
    metrics.observe_end("/ready", 503)  # a probe, every second until it is back
    metrics.observe_end(PATH, 400)
    metrics.observe_end("/wp-admin/setup.php", 404)
    metrics.observe_end("/wp-admin/login.php", 404)
    found = read(metrics)
    reasons = {key[1][0]: value for key, value in found.items() if key[0] == "vllm:request_success_total"}
    assert reasons == {"stop": 3, "length": 1, "abort": 4, "error": 6}
    http = {key[1]: value for key, value in found.items() if key[0] == "parlay:http_requests_total"}
    assert http == {
        (PATH, "200"): 4,
        (PATH, "499"): 2,
        (PATH, "503"): 3,
        (PATH, "400"): 2,
        ("/ready", "503"): 1,
        ("other", "404"): 2,
    }


def test_replicas_are_told_apart() -> None:
    """A replica's counters fall and its requests end by themselves; what nobody computed is the first's."""
    engines = [Engine(), Engine()]
    engines[0].stats, engines[1].stats = replace(SNAPSHOT, emitted=10), replace(SNAPSHOT, emitted=40)
    engines[1].restarts = 3
    metrics = PrometheusMetrics("tiny", "ngram", engines, "m")
    metrics.observe_first(0.05, 1)
    metrics.observe_step(0.08, 4, 1)
    whole = RequestMetrics(emitted=11, arrival=10.0, admitted=10.5, first_token=11.0, finished=13.0)
    (output,) = ended(whole)
    metrics.observe_end(PATH, 200, (replace(output, replica=1), output, output))
    metrics.observe_end(PATH, 503)
    engines[1].stats = StatsSnapshot(emitted=2)
    families = list(text_string_to_metric_families(metrics.expose()[0].decode()))
    found = {
        name: {
            sample.labels["engine"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and sample.labels.get("finished_reason", "stop") == "stop"
        }
        for name in (
            *("vllm:generation_tokens_total", "parlay:engine_restarts_total", "vllm:num_requests_running"),
            *("vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count"),
            *("vllm:request_success_total", "vllm:e2e_request_latency_seconds_sum", "parlay:engine_info"),
        )
    }
    assert found == {
        "vllm:generation_tokens_total": {"0": 10, "1": 42},
        "parlay:engine_restarts_total": {"0": 0, "1": 3},
        "vllm:num_requests_running": {"0": 2, "1": 0},
        "vllm:time_to_first_token_seconds_count": {"0": 0, "1": 1},
        "vllm:inter_token_latency_seconds_count": {"0": 0, "1": 4},
        "vllm:request_success_total": {"0": 2, "1": 1},
        "vllm:e2e_request_latency_seconds_sum": {"0": 6, "1": 3},
        "parlay:engine_info": {"0": 1, "1": 1},
    }
    assert len({family.name for family in families}) == len(families)
    errors = [line for line in metrics.expose()[0].decode().splitlines() if 'finished_reason="error"' in line]
    assert [line.endswith(" 1.0") for line in errors if 'engine="0"' in line] == [True]


def test_two_servers_in_one_process() -> None:
    one, other = Engine().metrics(), Engine().metrics()
    one.observe_end(PATH, 200, ended(RequestMetrics()))
    assert read(other)["vllm:request_success_total", ("stop",)] == 0


def test_a_request_knows_when_it_got_its_first_block(tmp_path: Path) -> None:
    llm = LLM(str(write_llama(tmp_path, scale=2.0)), max_num_seqs=2, speculative_config=None)
    outputs = llm.generate([[5, 6, 7]] * 4, SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
    every = [output.metrics for output in outputs]
    assert all(m.arrival <= m.admitted < m.first_token < m.finished for m in every)
    assert min(m.admitted for m in every[2:]) > every[0].first_token  # two at once: the others waited


def test_each_completion_has_its_own_time_between_tokens() -> None:
    """Three completions that each gain a token in a step are not three tokens of a third of the step."""
    seen: list[Any] = []

    class Watcher:
        def observe_first(self, seconds: float, replica: int) -> None:
            seen.append("first")

        def observe_step(self, seconds: float, tokens: int, replica: int) -> None:
            seen.append(tokens)

    state, before = RequestState(), {}
    for lengths in ((1, 0, 2), (2, 1, 0), (1, 1, 1)):  # new tokens of three completions
        ones = tuple(CompletionOutput(i, "", (1,) * n, ()) for i, n in enumerate(lengths))
        _measure(Watcher(), state, before, 0, RequestOutput(0, None, (1,), ones))  # type: ignore[arg-type]
    assert seen == ["first", "first", 2, "first", 1, 1, 1]


@pytest.mark.parametrize(
    ("numerics_id", "kind", "lossless"),
    [("m", "coupled", "true"), ("m/exact/block", "block", "true"), ("m/exact/typical-lossy", "typical", "false")],
)
def test_how_drafts_are_verified(numerics_id: str, kind: str, lossless: str) -> None:
    metrics = PrometheusMetrics("tiny", "ngram", [Engine()], numerics_id)
    (line,) = [one for one in metrics.expose()[0].decode().splitlines() if one.startswith("parlay:engine_info{")]
    assert f'numerics_id="{numerics_id}"' in line
    assert f'verification="{kind}"' in line
    assert f'lossless="{lossless}"' in line
