"""The process that runs chat templates for `template_process`: it renders requests until its input ends."""

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import BinaryIO

from parlay.errors import RequestError, TemplateRefusalError
from parlay.text.template_process import LENGTH
from parlay.text.template_runner import Runner

_MEMORY = 1 << 29  # bytes beyond what the process has at its start
_SPARE = 2  # seconds of processor time beyond those that its parent waits


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer each `[template, list of variables, seconds]`.

    By `[found, null]`, where each of `found` is `[text, null]` or `[null, why it is refused]`; or by `[null, what is
    wrong]` with the template.
    """
    runner = Runner()
    _limit_memory()
    while len(header := asked.read(LENGTH)) == LENGTH:
        template, many, seconds = json.loads(asked.read(int.from_bytes(header, "little")))
        _limit_time(seconds)
        try:
            found = [
                [None, str(one)] if isinstance(one, TemplateRefusalError) else [one, None]
                for one in runner.run_each(template, many)
            ]
            answer = json.dumps([found, None]).encode()
        except RequestError as error:
            answer = json.dumps([None, str(error)]).encode()
        except MemoryError:
            return  # the rest may be damaged
        answers.write(len(answer).to_bytes(LENGTH, "little") + answer)
        answers.flush()


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError, IndexError):  # where a system has no such limits
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY, hard))


def _limit_time(seconds: float) -> None:
    """Have the system end this process in case its parent, which would do so, is gone."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(process_time() + seconds) + _SPARE, hard))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides when this ends
    serve(sys.stdin.buffer, sys.stdout.buffer)
