"""Other engines as processes: their environments, and a JSON-lines protocol with a worker, with time limits."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from parlay import env
from parlay.errors import ParlayError, brief

WORKER = Path(__file__).with_name("peer_worker.py")
_COMPLETE = "installed"  # a file that marks an environment as complete
_AVX2 = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AVX512=OFF"


class PeerError(ParlayError):
    """A peer cannot be installed, cannot do what it is to do, or does not answer."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine.

    Attributes:
        name: in tables.
        requirements: what is installed into its environment; none for this one.
        methods: ways to speculate, as its worker takes them.
        directories, files: whether it reads Hugging Face's directories, and GGUF files.
        caches: whether its KV cache can be in eight bits.
        builds: whether it is compiled, for this machine or an instruction set.
        environment: variables that its processes get besides.
        without: packages that its requirements bring, and that do not fit the build of torch for processors.
    """

    name: str
    requirements: tuple[str, ...]
    methods: Mapping[str, Mapping[str, Any]]
    directories: bool = False
    files: bool = True
    caches: bool = False
    builds: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def reads(self, path: Path) -> bool:
        """Whether it reads this model."""
        return self.directories if path.is_dir() else self.files


def installed(peer: Peer, folder: Path, isa: str | None, tick: Callable[[str], None]) -> Path:
    """Return the Python of a peer's environment, which is made unless it is there.

    Args:
        peer: which one.
        folder: of all environments.
        isa: instruction set to compile for; None takes this machine's.
        tick: called with a label.

    Raises:
        PeerError: it cannot be installed.
    """
    if not peer.requirements:
        return Path(sys.executable)
    compiled = peer.builds and isa is not None
    name = peer.requirements[0].replace("==", "-") + (f"-{isa}" if compiled else "")
    place = folder / name
    python = place / "bin" / "python"
    if (place / _COMPLETE).exists():
        return python
    tick(f"installing {name}, which may take a while")
    fresh = ["--no-cache-dir"] if peer.builds else []  # pip caches what it compiled for other instruction sets
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(place)],
        [*pip, "install", *fresh, *peer.requirements],
        *([[*pip, "uninstall", "--yes", *peer.without]] if peer.without else []),
    ):
        variables = env.inherited({"CMAKE_ARGS": _AVX2} if compiled else {})
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerError(f"{name} cannot be installed: {_last_line(done.stderr) or 'pip failed'}")
    (place / _COMPLETE).touch()
    return python


class PeerWorker:
    """A worker process; a context manager, at whose end the process ends.

    Attributes:
        version: of the engine, once it is loaded.
        passes: whether it runs single passes.
        batches: whether it completes several prompts side by side.
    """

    def __init__(
        self, python: Path, threads: int, isa: str | None = None, more: Mapping[str, str] | None = None
    ) -> None:
        """Start the worker with a Python, for an engine of so many threads."""
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - ends with it
        own = {"PARLAY_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), **(more or {})}
        if isa is not None:
            own["PARLAY_ISA"] = isa
        self._threads, self.version, self.passes, self.batches = threads, "", False, False
        self._process = subprocess.Popen(
            [str(python), "-P", str(WORKER)],
            env=env.inherited(own),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._lines: Queue[str] = Queue()
        Thread(target=self._listen, daemon=True).start()

    def load(
        self, engine: str, model: str, method: Mapping[str, Any], length: int, limit: float, requests: int = 1
    ) -> None:
        """Have it load a model, for at most so many requests at a time.

        Raises:
            PeerError: it cannot.
        """
        room = {"threads": self._threads, "length": length, "requests": requests}
        found = self.call(limit, do="load", engine=engine, model=model, method=dict(method), **room)
        self.version, self.passes, self.batches = str(found["version"]), found["passes"], found["batches"]

    def call(self, limit: float, **what: Any) -> dict[str, Any]:
        """Return the result of a call.

        Args:
            limit: seconds that it may take; beyond, the process is ended.
            what: see `peer_worker.answer`.

        Raises:
            PeerError: it failed, ended, took too long, or gave an invalid answer.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=limit)
        except Empty:
            self.end()
            raise PeerError(f"no answer within {limit:.0f} seconds") from None
        except OSError:
            line = ""
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            raise PeerError(f"its process has ended: {_last_line(self._log.read()) or f'exit status {status}'}")
        try:
            found = dict(json.loads(line))
        except (ValueError, TypeError):
            self.end()
            raise PeerError(f"its answer is not JSON: {brief(line)}") from None
        if "error" in found:
            raise PeerError(brief(str(found["error"])))
        return found

    def end(self) -> None:
        """End the process and its children."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> "PeerWorker":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._log.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # closed meanwhile
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")


def _last_line(text: str) -> str:
    return brief(next((line for line in reversed(text.splitlines()) if line.strip()), ""))
