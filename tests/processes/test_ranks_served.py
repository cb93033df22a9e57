"""A server whose engine has several ranks: it answers as one rank does, and outlives each of them."""

import os
import signal
import threading

import httpx
import pytest
from checkpoints import write_llama
from ranks import free_address, joining
from server_process import ServerProcess, alive, children
from serving import Live, engine_of, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_ranks")]

SHORT = {"prompt": [1, 2, 3], "max_tokens": 12, "temperature": 0.8, "seed": 5, "logprobs": 1}
LONG = {"prompt": [1, 2, 3], "max_tokens": 480, "ignore_eos": True, "temperature": 0, "n": 4}


def answer(server: ServerProcess | Live) -> object:
    response = server.http.post("/v1/completions", json=SHORT)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def ranks_of(server: ServerProcess) -> list[int]:
    engine = server.engine
    return [] if engine is None else [pid for pid in children(engine) if alive(pid)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("ranks") / "target", seed=2, scale=7.0, calm=0.2))


@pytest.fixture(scope="module")
def alone(model: str) -> tuple[object, object]:
    """What a server of one rank answers, and what it says of itself."""
    with engine_of(model) as engine, Live(engine) as live:
        return answer(live), live.http.get("/version").json()


def test_it_answers_alike_and_outlives_its_ranks(model: str, alone: tuple[object, object]) -> None:
    expected, identity = alone
    with ServerProcess(model, "-tp", "2", "--speculative-config", "ngram") as server:
        assert answer(server) == expected
        assert server.http.get("/version").json() == identity
        first = ranks_of(server)
        assert len(first) == 1
        failed: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: failed.append(server.post(LONG)))
        asking.start()
        wait_for(lambda: server.figure("vllm:num_requests_running") > 0, 30)
        os.kill(first[0], signal.SIGKILL)
        asking.join(30)
        assert failed[0].status_code in (500, 502, 503), failed[0].text
        assert "engine" in failed[0].json()["error"]["message"]
        wait_for(lambda: server.ready(), 60)
        assert answer(server) == expected
        second = ranks_of(server)
        assert len(second) == 1
        assert not set(first) & set(second)
        assert server.stop() == 0
        wait_for(lambda: not any(map(alive, first + second)), 20)


def test_ranks_that_joined_join_again(
    model: str, alone: tuple[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is lost while no request is open, the other stays; another one takes the place of the first."""
    monkeypatch.setenv("PARLAY_RANK_KEY", "a key for the ranks of this test")
    expected, _ = alone
    address = free_address()
    arguments = model, "-tp", "3", "--rank-address", address
    with joining(address, ranks=2) as (lost, stays), ServerProcess(*arguments) as server:
        assert answer(server) == expected
        lost.kill()
        wait_for(lambda: server.post(SHORT).status_code in (500, 502, 503), 30)
        with joining(address):
            wait_for(lambda: server.ready(), 60)
            assert answer(server) == expected
            assert stays.poll() is None
            assert server.stop() == 0
