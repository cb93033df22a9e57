"""`parlay serve` as a process of its own, and what the system knows of it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from serving import wait_for

START_SECONDS = 60.0


class ServerProcess:
    """A server on a free loopback port while used as a context manager.

    Attributes:
        process: the front's.
        lines: what it has written to stderr.
        http: a client of it.
    """

    def __init__(self, *arguments: str, under: Sequence[str] = ()) -> None:
        """Start it; `arguments` are those of `parlay serve`, `under` is a command that starts it."""
        command = [*under, sys.executable, "-m", "parlay.cli.main", "serve", *arguments]
        if "--port" not in arguments:
            command += ["--port", "0"]
        # A suite in a shell's background ignores interrupts, which a server would inherit.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        finally:
            signal.signal(signal.SIGINT, before)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> "ServerProcess":
        try:
            wait_for(lambda: self.said("listening on") or self.process.poll() is not None, START_SECONDS)
            assert self.process.poll() is None, self.lines
        except BaseException:
            self.end()
            raise
        self.url = next(line for line in self.lines if "listening on" in line).split()[3]
        self.port = int(self.url.rpartition(":")[2])
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.end()

    def end(self) -> None:
        """Kill what is left."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Send a signal; return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def said(self, words: str) -> bool:
        """Whether a line on stderr holds these words."""
        return any(words in line for line in self.lines)

    def log(self) -> list[dict[str, Any]]:
        """Return the lines about requests."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    @property
    def pid(self) -> int:
        """The front's."""
        return self.process.pid

    @property
    def engine(self) -> int | None:
        """The engine's process id; None while there is none."""
        return next(iter(self.engines), None)

    @property
    def engines(self) -> list[int]:
        """The process ids of all engines there are."""
        return [pid for pid in children(self.pid) if "spawn_main" in _command(pid)]

    def post(self, body: Any, path: str = "/v1/completions", **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def ready(self) -> bool:
        return self.http.get("/ready").status_code == 200

    def figure(self, name: str) -> float:
        """Return a figure of `/metrics`, its labels summed up."""
        return sum(self.figures(name).values())

    def figures(self, name: str) -> dict[str, float]:
        """Return a figure of `/metrics` for each engine that has it, other labels summed up."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name:
                    engine = sample.labels["engine"]
                    found[engine] = found.get(engine, 0.0) + sample.value
        return found


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still exist."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def renderers(pid: int) -> list[int]:
    """Return the processes in which a server runs chat templates: the model's, and clients'."""
    return [child for child in children(pid) if "template_process" in _command(child)]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def processor_ticks(pid: int) -> int:
    """Return how long a process has computed, in the system's ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def processor_seconds(pids: Sequence[int]) -> float:
    """Return how long processes have computed together."""
    return sum(map(processor_ticks, pids)) / os.sysconf("SC_CLK_TCK")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
