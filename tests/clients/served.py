"""`parlay serve` as its users start it: a process of its own on a free port."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

KEYS = {"alice": "alice-secret-key", "bob": "bob-secret-key"}
# Fixed lengths: what is looked at must not depend on the clock.
NGRAM = '{"method": "ngram", "lengths": "fixed", "num_speculative_tokens": 5}'

# The parameters of a function that tells the weather.
FORECAST: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


class Served:
    """A server process while used as a context manager; it must end in order."""

    def __init__(self, *options: str, model: str = "tiny-code", keys: str = "") -> None:
        """Take note; `options` are command line flags, `keys` what PARLAY_API_KEY says."""
        self._command = [sys.executable, "-m", "parlay.cli.main", "serve", model, "--port", "0", *options]
        self._environment = {**os.environ, "PARLAY_API_KEY": keys}
        self.log: list[str] = []
        self._listening = threading.Event()

    def __enter__(self) -> "Served":
        self._process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=self._environment
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._listening.wait(60):
            self._process.kill()
            raise AssertionError("the server did not listen within a minute:\n" + "".join(self.log))
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        assert code == 0, f"the server ended with {code}:\n" + self.tail()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self.log.append(line)
                if found := re.search(r"listening on (http://\S+)", line):
                    self.url = found[1]
                    self._listening.set()

    def stop(self) -> None:
        """End it early; as a context manager it then has nothing left to do."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(40) == 0

    def tail(self) -> str:
        """Return the last lines of its log."""
        return "".join(self.log[-40:])


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    """Wait until `condition()` holds; fail if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
