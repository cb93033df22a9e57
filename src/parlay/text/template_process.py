"""Running chat templates, those of others in a process that is ended where one takes too long or too much memory.

A template is untrusted code, and one call within it, such as a comparison of nested lists, can take forever and hold
the interpreter meanwhile. A process can be ended. This file is that process's program, too: it answers each
`[template, list of variables, seconds]` until its parent closes the connection.
"""

import json
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import process_time
from typing import Any, TypeVar

from parlay import env, system
from parlay.errors import RequestError, TemplateRefusalError, brief

# The templates of parlay's own models, which end.
_SHIPPED = frozenset({"6efb3b03ee354915a0d4c4d44d0233ddd7a185262a82e1ad184bde68c6efd641"})
SECONDS = 10.0  # that one rendering may take, the start of a process included
_SPARE = 2  # seconds of processor time beyond those
_MEMORY = 1 << 29  # bytes beyond what the process has at its start
_AT_START = 1 << 28  # bytes of addresses at its start, where the system does not say: ten times Linux's
_LONGEST = 1 << 28  # bytes of an answer
_COMMAND = (sys.executable, "-P", "-m", "parlay.text.template_process")
_REMEMBERED = 32  # findings

_ENDLESS = "the chat template does not come to an end; give another one"
_CLOSED = "no chat template is run any more: the engine was closed; start another"
_DIED = "the chat template needs far more memory than a conversation, or ended its process; give another one"

T = TypeVar("T")
_Child = tuple[subprocess.Popen[bytes], Connection]


class TemplateRunner:
    """Runs templates in this process, for those that are trusted to end."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def run(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text that a template makes.

        Args:
            template: the chat template, in Jinja's language.
            variables: its variables by name.

        Raises:
            TemplateRefusalError: it is no template, or refuses.
            RequestError: it does not end, or its result is too large.
        """
        (found,) = self.run_each(template, [variables])
        if isinstance(found, TemplateRefusalError):
            raise found
        return found

    def run_each(self, template: str, many: Sequence[Mapping[str, Any]]) -> list[str | TemplateRefusalError]:
        """Return the texts that a template makes of each of several sets of variables, or why it refuses one.

        Raises:
            RequestError: it does not end, or its result is too large.
        """
        return [_run(template, variables) for variables in many]

    def remembered(self, about: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` returns about a template, calling it only for what is not cached."""
        if about in self._known:
            found: T = self._known[about]
            return found
        found = self._known[about] = find()
        for oldest in list(self._known)[:-_REMEMBERED]:
            self._known.pop(oldest, None)
        return found


def _run(template: str, variables: Mapping[str, Any]) -> str | TemplateRefusalError:
    from parlay.text.template import render  # slow to import

    try:
        return render(template, variables)
    except TemplateRefusalError as refusal:
        return refusal
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # a template's expressions may raise anything
        reason = brief(str(error).strip().split("\n")[0]) or type(error).__name__
        return TemplateRefusalError(f"the chat template refuses these messages: {reason}")


class TemplateProcess(TemplateRunner):
    """Runs templates one after another in a process, started with the first and again after it was ended."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """Start nothing yet.

        Args:
            seconds: longest time of one rendering.
        """
        super().__init__()
        self._seconds = seconds
        self._closed = False
        self._lock = threading.Lock()
        self._started: list[_Child] = []  # one, or none
        weakref.finalize(self, _end, self._started)

    def run_each(self, template: str, many: Sequence[Mapping[str, Any]]) -> list[str | TemplateRefusalError]:
        """Return the texts that a template makes, as `TemplateRunner.run_each`; together they have the time of one.

        Raises:
            RequestError: it does not end, needs too much memory, or its input is no plain data.
        """
        if sha256(template.encode(errors="surrogatepass")).hexdigest() in _SHIPPED:
            return super().run_each(template, many)
        try:
            call = json.dumps([template, many, self._seconds], default=_plain).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the chat template takes only JSON values: {error}") from None
        with self._lock:  # a call that waited here while it was closed starts no further process
            answer = self._call(call)
        found, trouble = json.loads(answer)
        if trouble is not None:
            raise RequestError(str(trouble))
        return [TemplateRefusalError(why) if text is None else str(text) for text, why in found]

    def close(self) -> None:
        """End the process at once; calls that wait for it, and later ones, get an error."""
        self._closed = True
        for process, _ in list(self._started):
            process.kill()  # so that a thread that waits for it goes on
        with self._lock:
            _end(self._started)

    def _call(self, message: bytes) -> bytes:
        """Return the process's answer.

        Raises:
            RequestError: it took too long, or the process died or was closed.
        """
        answer, late = b"", False
        try:
            connection = None if self._closed else self._connection()
            if connection is not None and not self._closed:  # perhaps since
                connection.send_bytes(message)
                late = not connection.poll(self._seconds)
                answer = b"" if late else connection.recv_bytes(_LONGEST)
        except (OSError, EOFError):  # it has ended
            pass
        finally:
            if not answer:  # also if this thread was interrupted: the next call would get this one's answer
                _end(self._started)
        if answer:
            return answer
        raise RequestError(_CLOSED if self._closed else _ENDLESS if late else _DIED)

    def _connection(self) -> Connection:
        if self._started and self._started[0][0].poll() is not None:
            _end(self._started)
        if not self._started:
            try:
                own, other = Pipe()
                with other:
                    process = subprocess.Popen(
                        (*_COMMAND, str(other.fileno())),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        pass_fds=[other.fileno()],
                        env=env.inherited({}),
                    )
            except OSError as error:
                raise RequestError(
                    f"no process can be started to run the chat template in ({error.strerror}); try again later"
                ) from None
            self._started.append((process, own))
        return self._started[0][1]


def _end(started: list[_Child]) -> None:
    while started:
        process, connection = started.pop()
        process.kill()
        process.wait()
        connection.close()


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


def _serve(connection: Connection) -> None:
    """Answer each call by `[found, null]`, or by `[null, what is wrong]` with the template.

    Each of `found` is `[text, null]` or `[null, why it is refused]`.
    """
    runner = TemplateRunner()
    _limit(resource.RLIMIT_AS, (system.addresses_in_use() or _AT_START) + _MEMORY)
    with suppress(EOFError, OSError, MemoryError):  # after which the rest may be damaged
        while True:
            template, many, seconds = json.loads(connection.recv_bytes(_LONGEST))
            # The system ends this process in case its parent, which would do so, is gone.
            _limit(resource.RLIMIT_CPU, int(process_time() + seconds) + _SPARE)
            try:
                found = [
                    [None, str(one)] if isinstance(one, TemplateRefusalError) else [one, None]
                    for one in runner.run_each(template, many)
                ]
                answer = json.dumps([found, None])
            except RequestError as error:
                answer = json.dumps([None, str(error)])
            connection.send_bytes(answer.encode())


def _limit(what: int, most: int) -> None:
    with suppress(OSError, ValueError):  # where a system has no such limit
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides when this ends
    _serve(Connection(int(sys.argv[1])))
