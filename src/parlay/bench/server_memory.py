"""A server's memory: that of its processes when it is ready, and after its first request."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from parlay.errors import ParlayError

_LISTENING = re.compile(r"listening on (http://\S+)")
_ASKED = {"messages": [{"role": "user", "content": "Name five rivers."}], "max_tokens": 64}


def measure(model: str) -> dict[str, Any]:
    """Return resident bytes of `parlay serve MODEL` and of all processes that it starts.

    Args:
        model: by name, directory or file; it needs a chat template.

    Raises:
        ParlayError: the server does not start.
    """
    command = [sys.executable, "-m", "parlay.cli.main", "serve", model, "--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = _address(process)
            idle = resident(process.pid)
            body = json.dumps(_ASKED).encode()
            asked = Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
            with build_opener(ProxyHandler({})).open(asked, timeout=120) as answer:
                answer.read()
            return {"model": model, "idle": idle, "after_a_request": resident(process.pid)}
        finally:
            process.terminate()


def resident(pid: int) -> int:
    """Return the resident bytes of a process and of those that it has started."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    own = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    children = [task.read_text("utf-8").split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return own + sum(resident(int(child)) for some in children for child in some)


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := _LISTENING.search(line):
            return found[1]
    raise ParlayError(f"the server did not start: {said[-1].strip() if said else 'it said nothing'}")
