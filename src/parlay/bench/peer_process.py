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
from types import TracebackType
from typing import Any

from parlay import env
from parlay.errors import ParlayError, brief

_WORKER = Path(__file__).with_name("peer_worker.py")
_COMPLETE = "installed"  # a file that marks an environment as complete, and lists its packages
_INSTALLING = 5400.0  # seconds; some are compiled
_AVX2 = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AVX512=OFF"


class PeerError(ParlayError):
    """A peer cannot be installed, cannot do what it was asked, or does not answer."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine.

    Attributes:
        name: in tables.
        requirements: what is installed into its environment.
        methods: ways to speculate, as its worker takes them.
        directories, files: whether it reads Hugging Face's directories, and GGUF files.
        builds: whether it is compiled, for this machine or an instruction set.
        environment: variables that its processes get besides.
        without: packages that its requirements bring, and that do not fit the build of torch for processors.
    """

    name: str
    requirements: tuple[str, ...]
    methods: Mapping[str, Mapping[str, Any]]
    directories: bool = False
    files: bool = True
    builds: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def reads(self, path: Path) -> bool:
        """Whether it reads this model."""
        return self.directories if path.is_dir() else self.files


def installed(peer: Peer, folder: Path | None, isa: str | None, tick: Callable[[str], None]) -> Path:
    """Return the Python of a peer's environment, which is made unless it is there.

    Args:
        peer: which one.
        folder: of all environments; None takes the user's cache folder.
        isa: instruction set to compile for; None takes this machine's.
        tick: called with what is going on.

    Raises:
        PeerError: it cannot be installed.
    """
    if peer.requirements == ("parlay",):
        return Path(sys.executable)
    cache = env.cache_dir()
    if folder is None and cache is None:
        raise PeerError("there is no cache folder for its environment; name one with --environments")
    name = peer.requirements[0].replace("==", "-") + (f"-{isa}" if isa and peer.builds else "")
    place = (folder or cache / "peers") / name  # type: ignore[operator]
    python = place / "bin" / "python"
    if (place / _COMPLETE).exists():
        return python
    tick(f"installing {name}, which may take a while")
    more = {"CMAKE_ARGS": _AVX2} if isa and peer.builds else {}
    fresh = ["--no-cache-dir"] if peer.builds else []  # pip caches what it compiled for other instruction sets
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(place)],
        [*pip, "install", *fresh, *peer.requirements],
        *([[*pip, "uninstall", "--yes", *peer.without]] if peer.without else []),
    ):
        try:
            done = subprocess.run(
                command,
                env=env.inherited(more),
                capture_output=True,
                text=True,
                timeout=_INSTALLING,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"installing {name} took more than {_INSTALLING / 60:.0f} minutes") from None
        except OSError as error:
            raise PeerError(f"{name} cannot be installed: {error}") from None
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise PeerError(f"{name} cannot be installed: {brief(said[-1] if said else 'pip failed')}")
    (place / _COMPLETE).write_text("\n".join(peer.requirements) + "\n", "utf-8")
    return python


class Worker:
    """A worker process; a context manager, at whose end the process ends.

    Attributes:
        version: of the engine, once it is loaded.
        passes: whether it runs single passes.
        batches: whether it completes several prompts side by side.
    """

    def __init__(
        self, python: Path, threads: int, isa: str | None = None, more: Mapping[str, str] | None = None
    ) -> None:
        """Start `worker` with a Python, for an engine of so many threads."""
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - ends with it
        own = {"PARLAY_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), **(more or {})}
        if isa is not None:
            own["PARLAY_ISA"] = isa
        self._threads, self.version, self.passes, self.batches = threads, "", False, False
        self._process = subprocess.Popen(
            [str(python), "-P", str(_WORKER)],
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
        found = self.ask(limit, do="load", engine=engine, model=model, method=dict(method), **room)
        self.version, self.passes = str(found["version"]), bool(found["passes"])
        self.batches = bool(found["batches"])

    def ask(self, limit: float, **what: Any) -> dict[str, Any]:
        """Return the result of a request.

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
            raise PeerError(f"its process has ended: {self._last_words()}")
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            self.end()
            raise PeerError(f"it answered something else than JSON: {brief(line)}")
        if "error" in found:
            raise PeerError(brief(str(found["error"])))
        return found

    def end(self) -> None:
        """End the process and its children."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._log.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(line)
        except ValueError:  # closed meanwhile
            pass
        self._lines.put("")

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        return brief(lines[-1]) if lines else f"exit status {self._process.returncode}"
