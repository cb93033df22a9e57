"""`parlay serve` as a process: how it starts, ends and outlives its engine."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import write_llama
from hostile import Watch, Wire, request, status
from server_process import ServerProcess, alive, children, descriptors, renderers
from serving import wait_for
from text.hostile_templates import HOSTILE

pytestmark = pytest.mark.processes

LONG = {"prompt": [1, 2, 3], "max_tokens": 480, "ignore_eos": True, "temperature": 0, "n": 4}
SHORT = {"prompt": [1, 2, 3], "max_tokens": 2}
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("process") / "target", seed=2, scale=7.0, calm=0.2))


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[ServerProcess]:
    """With few files; it is ended while its engine restarts."""
    times = "--body-timeout", "2", "--engine-timeout", "2"
    with ServerProcess(model, *times, under=["prlimit", "--nofile=300:300"]) as server:
        assert server.said("300 files may be open at once")
        assert not server.said("\x1b"), "a pipe gets no bar"
        assert not server.said("loading"), "a pipe gets no bar"
        yield server
        assert server.engine is not None
        os.kill(server.engine, signal.SIGKILL)
        wait_for(lambda: not server.ready())
        assert server.stop() == 0
        assert not children(server.pid)


def failing(*arguments: str) -> tuple[int, list[str]]:
    """Return the exit status of a server that cannot start, and what it says."""
    server = ServerProcess(*arguments)
    try:
        return server.process.wait(60), server.lines
    finally:
        server.end()


def test_a_port_in_use_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, lines = failing(str(tmp_path / "no-model"), "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert len(lines) == 1
    assert "cannot be listened on (Address already in use); choose another --host or --port" in lines[0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param(["--host", "203.0.113.9"], "203.0.113.9:0 cannot be listened on", marks=pytest.mark.soak),
        pytest.param(["--model", "/no/such/model"], "/no/such/model", marks=pytest.mark.soak),
        (["--num-blocks", "1"], "the cache holds 16 tokens"),
    ],
)
def test_what_cannot_be_served_is_told_in_a_line(model: str, more: list[str], words: str) -> None:
    code, lines = failing(*([] if "--model" in more else [model]), *more)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("parlay: ")
    assert words in lines[0]


def test_a_damaged_model_is_told_in_a_line(model: str, tmp_path: Path) -> None:
    broken = write_llama(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    code, lines = failing(str(broken))
    assert code == 2
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("number", "expected"), [pytest.param(signal.SIGTERM, 0, marks=pytest.mark.soak), (signal.SIGINT, 130)]
)
def test_a_signal_while_it_loads(model: str, number: signal.Signals, expected: int) -> None:
    server = ServerProcess(model)
    try:
        wait_for(lambda: server.engine is not None)
        engine = server.engine
        assert server.stop(number) == expected
        assert engine is not None
        wait_for(lambda: not alive(engine))
    finally:
        server.end()
    assert not server.said("Traceback")


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_killed_and_back_again(server: ServerProcess, times: int) -> None:
    """Open requests get a clear error, probes turn red, and each time it comes back."""
    for _ in range(times):
        watch = Watch(server.url, LONG)
        wait_for(lambda watch=watch: watch.running)  # type: ignore[misc]
        assert server.engine is not None
        os.kill(server.engine, signal.SIGKILL)
        watch.join()
        assert not watch.complete
        assert watch.error is not None
        assert watch.error["code"] == "engine_not_ready"
        for answer in (server.http.get("/health"), server.http.get("/ready"), server.post(SHORT)):
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
            assert "restarting" in answer.json()["error"]["message"]
        wait_for(server.ready, 60)
        assert server.post(SHORT).status_code == 200
        assert server.http.get("/health").status_code == 200


def test_one_that_hangs_is_replaced(server: ServerProcess) -> None:
    watch = Watch(server.url, LONG)
    wait_for(lambda: watch.running)
    engine = server.engine
    assert engine is not None
    os.kill(engine, signal.SIGSTOP)
    watch.join()
    assert watch.error is not None
    assert watch.error["code"] == "engine_not_ready"
    wait_for(server.ready, 60)
    assert server.engine != engine
    assert server.said("sent nothing within --engine-timeout")


def test_a_client_that_reads_nothing_is_left(server: ServerProcess) -> None:
    """Its answer waits where it is for a while; then the connection is closed, and nothing is left of it."""
    before, said = descriptors(server.pid), len(server.log())
    many = {**LONG, "prompt": [[i, 1] for i in range(2)], "n": 16, "logprobs": 20, "stream": True}
    for body in (many, {**many, "stream": False}, {**LONG, "n": 16, "logprobs": 20}):
        with Wire(server.port, buffer=1024) as wire:
            assert wire.send(request(json.dumps(body).encode()))
            wait_for(lambda said=said: len(server.log()) > said, 60)  # type: ignore[misc]
            wait_for(lambda: descriptors(server.pid) <= before)
        said = len(server.log())
    wait_for(lambda: server.figure("vllm:num_requests_running") == 0)
    assert server.post(SHORT).status_code == 200


def test_half_closed_is_gone(server: ServerProcess) -> None:
    before = len(server.log())
    with Wire(server.port) as wire:
        wire.send(request(json.dumps(LONG).encode()))
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.read() == b""
    wait_for(lambda: any(line["status"] == 499 for line in server.log()[before:]))


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    bodies = [json.dumps({**SHORT, "max_tokens": i + 1}).encode() for i in range(5)]
    with Wire(server.port) as wire:
        wire.send(b"".join(request(body) for body in bodies[:-1]) + request(bodies[-1], "Connection: close"))
        answers = wire.read().split(b"HTTP/1.1 ")[1:]
    assert [json.loads(a.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] for a in answers] == [1, 2, 3, 4, 5]


def test_a_duplicate_key_counts_once(server: ServerProcess) -> None:
    answer = server.http.post("/v1/completions", content=b'{"prompt": "x", "max_tokens": 9, "max_tokens": 1}')
    assert answer.json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"b" * 65_536,  # so little too long that nothing is left unread
        request(b"", "Content-Length: 1", length=2),
        request(b"x", length=-1),
    ],
)
def test_heads_that_are_no_http(server: ServerProcess, head: bytes) -> None:
    """The library that reads HTTP answers these itself, in plain text."""
    with Wire(server.port) as wire:
        wire.send(head)
        with suppress(OSError):  # the server may have closed already
            wire.socket.shutdown(socket.SHUT_WR)
        assert status(wire.read()) == 400


def test_few_files_allowed(server: ServerProcess) -> None:
    """Connections beyond what the system allows are closed at once; those inside are served."""
    before = descriptors(server.pid)
    with ExitStack() as many:
        first = server.http.get("/health")
        wires = [many.enter_context(Wire(server.port)) for _ in range(400)]
        assert first.status_code == server.post(SHORT).status_code == 200
        assert wires[-1].read() == b""
    wait_for(lambda: descriptors(server.pid) <= before + 1)


def rendering(server: ServerProcess, pool: ThreadPoolExecutor, count: int = 8) -> "list[Future[httpx.Response]]":
    """Have many templates run that do not end, more than there are threads for whatever is slow."""
    bodies = [{**HELLO, "chat_template": HOSTILE[0], "user": "x" * 5000}] * count
    asked = [pool.submit(server.post, body, "/v1/chat/completions") for body in bodies]
    wait_for(lambda: len(renderers(server.pid)) == 2)
    return asked


def test_templates_of_clients_keep_nobody_else_waiting_and_end_with_the_server(model: str) -> None:
    """The one that runs is ended, and no further one begins."""
    more = ("--trust-request-chat-template", "--shutdown-timeout", "1")
    with ServerProcess(model, *more) as server, ThreadPoolExecutor(8) as pool:
        asked = rendering(server, pool)
        for body in (HELLO, {**HELLO, "user": "x" * 5000}):
            assert server.post(body, "/v1/chat/completions").status_code == 200
        assert server.http.get("/health").status_code == server.post(SHORT).status_code == 200
        assert not any(one.done() for one in asked)
        running = [*renderers(server.pid), server.engine]
        assert server.stop(seconds=20) == 0
        for pid in running:
            assert pid is not None
            wait_for(lambda pid=pid: not alive(pid))  # type: ignore[misc]
        for one in asked:
            error = one.exception()
            assert isinstance(error, httpx.TransportError) if error else one.result().status_code in (400, 503)
        assert not server.said("Traceback")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_signals_under_load(model: str, number: signal.Signals) -> None:
    """The first lets what is open finish, the second does not."""
    with ServerProcess(model) as server:
        watches = [Watch(server.url, {**LONG, "n": 8}) for _ in range(4)]
        wait_for(lambda: any(watch.running for watch in watches))
        engine = server.engine
        server.process.send_signal(number)
        wait_for(lambda: server.http.get("/ready").status_code == 503)
        assert server.post(SHORT).status_code == 503
        began = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - began < 15
        for watch in watches:
            watch.join()
            assert watch.complete or watch.error is not None or watch.cut
        assert engine is not None
        wait_for(lambda: not alive(engine))


def test_a_front_that_is_killed_leaves_nothing(model: str) -> None:
    more = "-dp", "2", "--log-format", "text"
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as folder:
        with ServerProcess(model, *more, under=["env", f"TMPDIR={folder}"]) as server:
            engines = server.engines
            assert len(engines) == 2
            assert server.said("replicas     2, each as follows")
            assert all(own.stat().st_mode & 0o777 == 0o700 for own in Path(folder).iterdir() if own.is_dir())
            watch = Watch(server.url, LONG)
            wait_for(lambda: watch.running)
            server.process.kill()
            wait_for(lambda: not any(map(alive, engines)))
            watch.join()
        wait_for(lambda: not list(Path(folder).iterdir()))


def test_help_needs_no_server() -> None:
    said: Any = subprocess.run([sys.executable, "-m", "parlay.cli.main", "serve", "--help"], capture_output=True)
    assert b"--engine-timeout" in said.stdout
