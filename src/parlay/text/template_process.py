"""Chat templates in a separate process, which is ended where a template takes too long or too much memory.

A template is untrusted code. The sandbox of `template` counts its iterations, but one call within it, such as a
comparison of nested lists, can take forever and holds the interpreter meanwhile. A process can be ended.
"""

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from parlay import env
from parlay.errors import RequestError, TemplateRefusalError
from parlay.text.template_runner import Runner

# Those of parlay's own models, which end.
_SHIPPED = frozenset({"6efb3b03ee354915a0d4c4d44d0233ddd7a185262a82e1ad184bde68c6efd641"})
SECONDS = 10.0  # that one rendering may take, the start of a process included
_LONGEST = 1 << 28  # bytes of an answer
_COMMAND = (sys.executable, "-P", "-m", "parlay.text.template_worker")
LENGTH = 8  # bytes, little-endian, before each message

_ENDLESS = "the chat template does not come to an end; give another one"
_CLOSED = "no chat template is run any more: the engine was closed; start another"
_DIED = "the process of the chat template has ended, perhaps for want of memory; give another template"


class TemplateProcess(Runner):
    """Runs templates one after another in a process, started with the first and again after it was ended."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """Start nothing yet.

        Args:
            seconds: that one rendering may take.
        """
        super().__init__()
        self._seconds = seconds
        self._closed = False
        self._lock = threading.Lock()
        self._started: list[subprocess.Popen[bytes]] = []  # one, or none
        self._end = weakref.finalize(self, _end, self._started)

    def run_each(self, template: str, many: Sequence[Mapping[str, Any]]) -> list[str | TemplateRefusalError]:
        """Return the texts that a template makes, as `Runner.run_each`; together they have the time of one.

        Raises:
            RequestError: it does not end, needs too much memory, or its input is no plain data.
        """
        if sha256(template.encode(errors="surrogatepass")).hexdigest() in _SHIPPED:
            return super().run_each(template, many)
        try:
            asked = json.dumps([template, many, self._seconds], default=_plain).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the chat template is given plain data alone: {error}") from None
        with self._lock:  # a call that waited here while it was closed starts no further process
            answer = self._ask(asked)
        found, trouble = json.loads(answer)
        if trouble is not None:
            raise RequestError(str(trouble))
        return [TemplateRefusalError(why) if text is None else str(text) for text, why in found]

    def close(self) -> None:
        """End the process at once; calls that wait for it, and later ones, get an error."""
        self._closed = True
        _end(self._started)

    def _ask(self, asked: bytes) -> bytes:
        """Return the process's answer.

        Raises:
            RequestError: it took too long, or the process died or was closed.
        """
        process = None if self._closed else self._process()
        if process is None or self._closed:  # perhaps since
            _end(self._started)
            raise RequestError(_CLOSED)
        late = threading.Event()
        timer = threading.Timer(self._seconds, _give_up, (process, late))
        timer.daemon = True
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(len(asked).to_bytes(LENGTH, "little") + asked)
            process.stdin.flush()
            length = int.from_bytes(_exactly(process, LENGTH), "little")
            return _exactly(process, length)
        except (OSError, EOFError, ValueError):
            _end(self._started)
            raise RequestError(_CLOSED if self._closed else _ENDLESS if late.is_set() else _DIED) from None
        finally:
            timer.cancel()

    def _process(self) -> "subprocess.Popen[bytes]":
        if self._started and self._started[0].poll() is not None:
            _end(self._started)
        if not self._started:
            try:
                self._started.append(
                    subprocess.Popen(
                        _COMMAND,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        env=env.inherited({}),
                    )
                )
            except OSError as error:
                raise RequestError(
                    f"no process can be started to run the chat template in ({error.strerror}); try again later"
                ) from None
        return self._started[0]


def _exactly(process: "subprocess.Popen[bytes]", count: int) -> bytes:
    assert process.stdout is not None
    found = process.stdout.read(count) if count <= _LONGEST else b""
    if len(found) < count:
        raise EOFError
    return found


def _give_up(process: "subprocess.Popen[bytes]", late: threading.Event) -> None:
    late.set()
    process.kill()


def _end(started: "list[subprocess.Popen[bytes]]") -> None:
    while started:
        try:
            process = started.pop()
        except IndexError:  # another thread was faster
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # the reader is gone
                    pipe.close()


def _plain(value: Any) -> Any:
    """Return a value's replacement in JSON, which has objects and lists alone.

    Raises:
        TypeError: it has none.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is none")
