"""`/metrics` in Prometheus' text format; under vLLM's names (since 0.10) where the meaning is the same.

Counters come from the engine's newest snapshot, so that a step costs nothing here; after an engine's restart they
continue from where the last one stopped. What the server itself observes is counted by the library's own objects.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import prometheus_client as prometheus
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from parlay.config.verification import LOSSY, verification_of
from parlay.metrics import COUNTERS, GAUGES
from parlay.server.errors import CLIENT_LEFT
from parlay.types.output import RequestMetrics, RequestOutput
from parlay.types.stats import Stats, StatsSnapshot

FINISH_REASONS = ("stop", "length", "abort", "error")
# Any other path is `other`: arbitrary paths of clients must not become series.
ENDPOINTS = (
    *("/", "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens"),
    *("/tokenize", "/detokenize", "/docs", "/openapi.json"),
    *("/health", "/ready", "/version", "/metrics"),
)
_COMPLETIONS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")

# vLLM's borders, and below them some for small models on a fast machine.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_PER_TOKEN = (
    *(0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_REQUEST = (
    *(0.01, 0.025, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)

# Name to help text, borders.
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": ("From a request's arrival to its first token.", _FIRST_TOKEN),
    "vllm:inter_token_latency_seconds": (
        "Time between tokens; tokens of one step share its time.",
        _PER_TOKEN,
    ),
    "vllm:request_time_per_output_token_seconds": ("Mean time of a request's tokens after the first.", _PER_TOKEN),
    "vllm:e2e_request_latency_seconds": ("From a request's arrival to its end.", _REQUEST),
    "vllm:request_queue_time_seconds": ("From a request's arrival to its first cache block.", _REQUEST),
    "vllm:request_prefill_time_seconds": ("From a request's first cache block to its first token.", _REQUEST),
    "vllm:request_decode_time_seconds": ("From a request's first token to its end.", _REQUEST),
    "vllm:request_inference_time_seconds": ("From a request's first cache block to its end.", _REQUEST),
}

# What is read of an engine's counters: one value, or values by place or by the last of the further labels.
_Read = Callable[[Stats], float | list[int] | Mapping[Any, float]]
# Name to help text, further labels, and where it is read. Exposed with `_total` at the end.
_COUNTERS: dict[str, tuple[str, tuple[str, ...], _Read]] = {
    **{
        name: (text, ("position",) if name.endswith("_per_pos") else (), read)
        for name, (text, read) in COUNTERS.items()
    },
    "vllm:prefix_cache_queries": (
        "Prompt tokens looked up in the prefix cache.",
        (),
        lambda now: now.queried_tokens,
    ),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", (), lambda now: now.cached_tokens),
    "parlay:forward_passes": ("Forward passes of the target.", ("method",), lambda now: now.steps),
    "parlay:steps_without_draft": (
        "Steps of requests without a draft, by the reason.",
        ("method", "reason"),
        lambda now: now.undrafted,
    ),
    "parlay:draft_lengths": (
        "Steps of requests with a draft, by how many draft tokens were verified.",
        ("length",),
        lambda now: dict(sorted(now.lengths.items())),
    ),
    "parlay:proposer_faults": (
        "Requests on which a proposer failed, which continued without it.",
        ("method",),
        lambda now: now.faults,
    ),
    "parlay:draft_tokens": (
        "Draft tokens verified, by the proposer.",
        ("method",),
        lambda now: {source: one.drafted for source, one in now.methods.items()},
    ),
    "parlay:tokens_saved": (
        "Steps saved by draft tokens, by the proposer.",
        ("method",),
        lambda now: {source: one.saved for source, one in now.methods.items()},
    ),
    "parlay:step_seconds": (
        "Where steps spend their time: draft, forward (target), verify, schedule.",
        ("method", "phase"),
        lambda now: {
            "draft": now.propose,
            "forward": now.forward,
            "verify": now.verify,
            "schedule": now.schedule,
        },
    ),
}

_LABELS = ("model_name", "engine")  # of every series
_INFO = "parlay:engine_info"
_RESTARTS = "parlay:engine_restarts"
_SUCCESS = "vllm:request_success"
_HTTP = "parlay:http_requests"

# A counter's name and the values of its further labels.
_Key = tuple[str, tuple[str, ...]]


class EngineCounters(Protocol):
    """An engine's counters since its last start, and how often it was restarted."""

    @property
    def stats(self) -> StatsSnapshot:
        """The newest snapshot."""

    @property
    def restarts(self) -> int:
        """How often."""


class PrometheusMetrics:
    """Keeps what was counted and observed. Belongs to the event loop's thread alone."""

    def __init__(
        self, model_name: str, method: str, engines: Sequence[EngineCounters], numerics_id: str = ""
    ) -> None:
        """Start at zero.

        Args:
            model_name: labels every series.
            method: the proposer that is loaded; labels what has no other source.
            engines: one or more replicas, whose numbers label their series; what belongs to none is the first's.
            numerics_id: the numerics id of all engines.
        """
        kind = verification_of(numerics_id)
        self._info = (numerics_id, kind, str(kind not in LOSSY).lower())
        labels = (*_LABELS, "endpoint", "status")
        self._http = prometheus.Counter(_HTTP, "HTTP responses.", labels, registry=None)
        self._ended = prometheus.Counter(_SUCCESS, "Finished requests.", (*_LABELS, "finished_reason"), registry=None)
        self._histograms = {
            name: prometheus.Histogram(name, text, _LABELS, buckets=borders, registry=None)
            for name, (text, borders) in _HISTOGRAMS.items()
        }
        self._engines = [
            _Series((model_name, str(number)), method, one, self._ended, self._histograms)
            for number, one in enumerate(engines)
        ]
        self._registry = prometheus.CollectorRegistry()
        self._registry.register(self)

    def observe_first(self, seconds: float, replica: int) -> None:
        """Record how long a request waited for its first token."""
        self._engines[replica].histograms["vllm:time_to_first_token_seconds"].observe(seconds)

    def observe_step(self, seconds: float, tokens: int, replica: int) -> None:
        """Record `tokens` that came together, `seconds` after those before them."""
        histogram = self._engines[replica].histograms["vllm:inter_token_latency_seconds"]
        for _ in range(tokens):
            histogram.observe(seconds / tokens)

    def observe_end(
        self,
        path: str,
        status: int,
        outputs: Sequence[RequestOutput] = (),
        *,
        requested: int = 0,
        failed: bool = False,
    ) -> None:
        """Record a request's end: each completion that the engine got, or one error if the server failed.

        Args:
            path: path of the request.
            status: status of the answer; 499 if the client left before it.
            outputs: the newest of each prompt, of a stream the last delta; none for one that did not get so far.
            requested: completions that the engine was given to compute.
            failed: an answer that had begun ended with an error of the server's.
        """
        for engine in self._engines:
            engine.refresh()
        endpoint = path if path in ENDPOINTS else "other"
        self._http.labels(*self._engines[0].labels, endpoint, str(status)).inc()
        completions = [(output.replica, one) for output in outputs for one in output.outputs]
        failed = failed or status >= 500
        for replica, one in completions:
            # A client that left has its request aborted without another output.
            reason = "error" if status >= 500 else one.finish_reason or ("error" if failed else "abort")
            self._engines[replica].observe_request(reason, one.metrics)
        if failed or status == CLIENT_LEFT:
            # A probe's 503 is its answer. A request that failed before it was read is one.
            requested = max(requested, int(failed and endpoint in _COMPLETIONS))
            for _ in range(requested - len(completions)):
                self._engines[0].end("error" if failed else "abort")

    def expose(self) -> tuple[bytes, str]:
        """Return the page that a scraper reads, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Metric]:
        """Yield every family, for prometheus_client."""
        for engine in self._engines:
            engine.refresh()
        for name, (text, read) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for engine in self._engines:
                gauge.add_metric(engine.labels, read(engine.stats))
            yield gauge
        info = GaugeMetricFamily(
            _INFO,
            "Always 1: the engine's numerics id, how drafts are verified, whether that is lossless.",
            labels=(*_LABELS, "numerics_id", "verification", "lossless"),
        )
        for engine in self._engines:
            info.add_metric((*engine.labels, *self._info), 1)
        yield info
        totals = [(engine.labels, engine.total()) for engine in self._engines]
        for name, (text, further, _) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=(*_LABELS, *further))
            for labels, counts in totals:
                for (counted, own), value in counts.items():
                    if counted == name:
                        counter.add_metric((*labels, *own), value)
            yield counter
        restarts = CounterMetricFamily(_RESTARTS, "How often the engine was restarted.", labels=_LABELS)
        for engine in self._engines:
            restarts.add_metric(engine.labels, engine.restarts)
        yield restarts
        for observed in (self._ended, self._http, *self._histograms.values()):
            yield from _plain(observed.collect())


class _Series:
    """The counts and observations of one engine."""

    def __init__(
        self,
        labels: tuple[str, str],
        method: str,
        engine: EngineCounters,
        ended: prometheus.Counter,
        histograms: Mapping[str, prometheus.Histogram],
    ) -> None:
        self.labels = labels
        self._ended = {reason: ended.labels(*labels, reason) for reason in FINISH_REASONS}
        self.histograms = {name: histogram.labels(*labels) for name, histogram in histograms.items()}
        self._method, self._engine = method, engine
        self._counts: dict[_Key, float] = {}
        self._carried: Counter[_Key] = Counter()  # counts of engines before this one

    @property
    def restarts(self) -> int:
        return self._engine.restarts

    @property
    def stats(self) -> StatsSnapshot:
        return self._engine.stats

    def refresh(self) -> None:
        """Read the engine's counters; if one fell, the engine was restarted, and earlier counts are carried."""
        counts = _counts(self.stats, self._method)
        if any(counts.get(key, 0) < value for key, value in self._counts.items()):
            self._carried.update(self._counts)
        self._counts = counts

    def total(self) -> Counter[_Key]:
        """Return the values of `_COUNTERS` as they were last read, and of all engines before."""
        counts = Counter(self._carried)
        counts.update(self._counts)
        return counts

    def end(self, reason: str) -> None:
        """Count a request that ended."""
        self._ended[reason].inc()

    def observe_request(self, reason: str, metrics: RequestMetrics) -> None:
        """Observe why a request ended, and its phases as far as it came."""
        self.end(reason)
        arrival, admitted, first, end = metrics.arrival, metrics.admitted, metrics.first_token, metrics.finished
        for name, since, until in (
            ("vllm:e2e_request_latency_seconds", arrival, end),
            ("vllm:request_queue_time_seconds", arrival, admitted),
            ("vllm:request_prefill_time_seconds", admitted, first),
            ("vllm:request_decode_time_seconds", first, end),
            ("vllm:request_inference_time_seconds", admitted, end),
        ):
            if since and until:
                self.histograms[name].observe(until - since)
        if first and end and metrics.emitted > 1:
            per_token = (end - first) / (metrics.emitted - 1)
            self.histograms["vllm:request_time_per_output_token_seconds"].observe(per_token)


def names() -> set[str]:
    """Return the names of all series, as queries use them."""
    counters = {f"{name}_total" for name in (*_COUNTERS, _RESTARTS, _SUCCESS, _HTTP)}
    return (
        counters
        | {*GAUGES, _INFO}
        | {f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum", "count")}
    )


def _plain(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Yield families without their `_created` series.

    Readers that go by a name's beginning, `vllm bench serve` among them, would add those up with the rest.
    """
    for metric in metrics:
        metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield metric


def _counts(now: Stats, method: str) -> dict[_Key, float]:
    """Return the values of `_COUNTERS`; `method` labels those that are not by method."""
    counts: dict[_Key, float] = {}
    for name, (_, labels, read) in _COUNTERS.items():
        found = read(now)
        found = dict(enumerate(found)) if isinstance(found, list) else found
        by_label = {(str(key),): value for key, value in found.items()} if isinstance(found, Mapping) else {(): found}
        for own, value in by_label.items():
            counts[name, own if len(own) == len(labels) else (method, *own)] = value
    return counts
