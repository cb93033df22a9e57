"""Ranks on two nodes, each with an address of its own, and what may happen to the second of them."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from checkpoints import write_llama
from server_process import ServerProcess
from serving import wait_for
from two_nodes import FIRST, SECOND, TwoNodes

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")]

SHORT = {"prompt": [1, 2, 3], "max_tokens": 24, "temperature": 0.8, "seed": 5, "logprobs": 1}
LONG = {"prompt": [1, 2, 3], "max_tokens": 30000, "ignore_eos": True, "temperature": 0}
TIMEOUT = 4.0  # seconds that a rank waits for another
BOUND = TIMEOUT + 4.0  # seconds from a fault to the end of every open request
BACK = 90.0  # seconds from the repair to an answer; the server may have just begun its longest pause of 30 s
DIED = "the engine died and is being restarted; send the request again"
PORT = 6379


class Cluster:
    """Ray on both nodes, with one processor each: what is left behind takes the room of what comes next."""

    def __init__(self, nodes: TwoNodes, private: Path) -> None:
        self.nodes, self._private = nodes, private
        self._ray = str(Path(sys.executable).with_name("ray"))

    @contextmanager
    def head(self) -> Iterator[None]:
        more = ("--head", "--port", str(PORT), "--temp-dir", str(self._private), "--include-dashboard", "false")
        process = subprocess.Popen(self._command(FIRST, *more), stdout=self.nodes.log, stderr=self.nodes.log)
        try:
            wait_for(_head_listens, 60)
            yield
        finally:
            process.terminate()
            process.wait(60)

    def switch_on(self) -> None:
        """Have the second node join."""
        self.nodes.switch_on(self._command(SECOND, "--address", f"{FIRST}:{PORT}"), self._private)

    def _command(self, address: str, *more: str) -> list[str]:
        own = ("--node-ip-address", address, "--num-cpus", "1", "--object-store-memory", str(100 << 20), "--block")
        return [self._ray, "start", *own, *more]


def _head_listens() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((FIRST, PORT)) == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    with (tmp_path / "log").open("wb") as log, TwoNodes(log) as both:
        yield both
        both.switch_off()
        wait_for(lambda: not both.processes(0), 30)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, nodes: TwoNodes, tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("ray")
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    for name, value in {
        "RAY_ADDRESS": f"{FIRST}:{PORT}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PARLAY_RANK_TIMEOUT": str(TIMEOUT),
    }.items():
        monkeypatch.setenv(name, value)
    with TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # short enough for the names of Ray's sockets
        cluster = Cluster(nodes, Path(folder))
        with cluster.head():
            cluster.switch_on()
            yield cluster
            nodes.switch_off()


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_llama(tmp_path / "target", seed=2, scale=7.0, calm=0.2, max_position_embeddings=32768))


class Open:
    """Requests that are under way, whole and streamed, and how they end."""

    def __init__(self, server: ServerProcess, count: int = 4) -> None:
        self.ended: list[float] = []
        self.said: list[str] = []
        ways = (self._whole, self._streamed)
        self._threads = [threading.Thread(target=ways[i % 2], args=(server.url,)) for i in range(count)]
        for thread in self._threads:
            thread.start()
        wait_for(lambda: server.figure("vllm:num_requests_running") == count, 60)

    def _whole(self, url: str) -> None:
        answer = httpx.post(f"{url}/v1/completions", json=LONG, timeout=300, trust_env=False)
        self._end(f"{answer.status_code} {answer.json()['error']['message']}")

    def _streamed(self, url: str) -> None:
        body = LONG | {"stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300, trust_env=False) as answer:
            *_, last = (line for line in answer.iter_lines() if line.startswith("data: {"))
        self._end(f"503 {json.loads(last.removeprefix('data: '))['error']['message']}")

    def _end(self, said: str) -> None:
        self.ended.append(time.monotonic())
        self.said.append(said)

    def join(self, seconds: float) -> list[str]:
        """Wait for all of them; return what they were told."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), f"some are open after {seconds} s"
        return self.said


def answer(server: ServerProcess) -> object:
    response = server.post(SHORT)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def back(server: ServerProcess) -> bool:
    time.sleep(0.2)
    return server.ready()


def endure(
    model: str, arguments: tuple[str, ...], nodes: TwoNodes, switch_on: Callable[[], None], words: str
) -> list[str]:
    """Let a server of two ranks suffer; return a table of how long it took.

    Args:
        model: that it serves.
        arguments: more of them.
        nodes: the second of which has the other rank.
        switch_on: has it join.
        words: with which the command line of the rank there begins.
    """

    def kill() -> None:
        (rank,) = nodes.processes(1, words)
        os.kill(rank, signal.SIGKILL)

    faults: dict[str, tuple[float, Callable[[], None], Callable[[], None] | None]] = {
        "the rank is killed": (0, kill, None),
        "its node is off for 40 s": (40, nodes.switch_off, switch_on),
        "the link is cut for 10 s": (10, nodes.cut, nodes.mend),
        "the link is cut for 80 s": (80, nodes.cut, nodes.mend),  # by then Ray takes the node for dead
    }
    rows = ["| fault | last open request fails after | answers again, after the repair |", "|---|---|---|"]
    shared = set(Path("/dev/shm").iterdir())
    with ServerProcess(model) as alone:
        expected = answer(alone)
    with ServerProcess(model, "-tp", "2", *arguments) as server:
        assert answer(server) == expected
        for name, (seconds, do, repair) in faults.items():
            wait_for(lambda: len(nodes.processes(1, words)) == 1, 30)
            asked = Open(server)
            began = time.monotonic()
            do()
            assert asked.join(BOUND) == [f"503 {DIED}"] * 4
            wait_for(lambda: server.http.get("/health").status_code == 503, 5)
            if repair is not None:
                time.sleep(max(0.0, began + seconds - time.monotonic()))
                assert server.http.get("/health").status_code == 503
                assert server.post(SHORT).status_code == 503
                repair()
            mended = time.monotonic()
            wait_for(lambda: back(server), BACK)
            assert answer(server) == expected
            assert server.http.get("/health").status_code == 200
            rows.append(f"| {name} | {max(asked.ended) - began:.1f} s | {time.monotonic() - mended:.1f} s |")
        assert server.stop() == 0
    assert set(Path("/dev/shm").iterdir()) <= shared
    return rows


def test_a_ray_cluster_of_two_nodes(cluster: Cluster, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Open requests end in a clear error, the server stays, and afterwards it answers as before."""
    ray = ("--distributed-executor-backend", "ray")
    rows = endure(model, ray, cluster.nodes, cluster.switch_on, "ray::Rank")
    wait_for(lambda: not cluster.nodes.processes(1, "ray::Rank"), 30)
    with capsys.disabled():
        print("\n" + "\n".join(rows))


def test_a_rank_that_joins_from_another_node(
    nodes: TwoNodes, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARLAY_RANK_KEY", "a key for the ranks of this test")
    monkeypatch.setenv("PARLAY_RANK_TIMEOUT", str(TIMEOUT))
    address = f"{FIRST}:29500"
    command = [sys.executable, "-m", "parlay.cli.main", "rank", address]
    private = tmp_path / "private"
    private.mkdir()

    def switch_on() -> None:
        nodes.switch_on(command, private)

    switch_on()
    rows = endure(model, ("--rank-address", address), nodes, switch_on, "\0".join(command))
    with capsys.disabled():
        print("\n" + "\n".join(rows))
