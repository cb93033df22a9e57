"""Clients that mean harm or have bad luck: they get a clear refusal, and the stream next to them goes on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from checkpoints import write_llama
from hostile import BODIES, COMPLETIONS, CONNECTIONS, Patrol, Watch, completion, longest
from server_process import ServerProcess, processor_seconds

pytestmark = pytest.mark.processes

STREAM = {"prompt": [1, 2, 3], "max_tokens": 1000, "ignore_eos": True, "temperature": 0.8, "seed": 1}
HALT = 5.0  # seconds that a server computes without an event only if it is held up; other processes do not count


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that is watched all the while: its stream must come whole, right and without halts."""
    path = tmp_path_factory.mktemp("hostile") / "target"
    model = str(write_llama(path, seed=2, scale=7.0, calm=0.2, max_position_embeddings=2048))
    with ServerProcess(model, "--num-blocks", "2048", "--body-timeout", "2") as server:
        expected = Watch(server.url, STREAM).join()
        assert expected.complete
        engine = server.engine
        assert engine is not None
        clock = partial(processor_seconds, (server.pid, engine))
        patrol = Patrol(server.url, STREAM, rest=2.0, clock=clock)  # the soak asks without a pause
        yield server
        streams = patrol.end()
        assert (server.engine, server.process.poll()) == (engine, None)
        assert {(text, error) for _, text, error in streams} == {(expected.text, None)}
        assert longest(streams) < HALT
        assert server.stop() == 0
        assert not server.said("Traceback")


# Smaller ones of their kind are in the suite, or the same list is read where another thing is asked for.
LARGE = ("tokens of 4 MB", "text of a million tokens", "a million lists", "300,000 biases")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in LARGE else ()) for name in BODIES]
)
def test_bodies(server: ServerProcess, name: str) -> None:
    path, make, expected = BODIES[name]
    answer = server.http.post(path, content=make(), headers={"Content-Type": "application/json"})
    assert answer.status_code in expected, answer.text[:500]
    if answer.is_error:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(error["message"]) < 1500


@pytest.mark.parametrize("name", CONNECTIONS)
def test_connections(server: ServerProcess, name: str) -> None:
    attack, expected = CONNECTIONS[name]
    assert attack(server.port) <= expected
    assert httpx.post(server.url + COMPLETIONS, content=completion(), trust_env=False).status_code == 200


def test_health_while_a_grammar_is_compiled(server: ServerProcess) -> None:
    path, make, expected = BODIES["repeated repetition"]
    with ThreadPoolExecutor(1) as pool:
        asked, answers = pool.submit(server.http.post, path, content=make()), 0
        while not asked.done():
            assert server.http.get("/health").status_code == 200
            answers += not asked.done()
        assert asked.result().status_code in expected
        assert answers > 2


FIELDS = [0, -1, 1 << 62, 1 << 80, -(1 << 80), 1e308, -0.0, "", "x" * 10_000, [], [[]], {}, True, [None], {"": ""}]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_every_field_with_values_that_are_none(server: ServerProcess, every: bool) -> None:
    """Neither a failure of the server's, nor an answer that does not come.

    Endpoints that share a field get its values in turn; in the soak each gets all of them.
    """
    document = server.http.get("/openapi.json").json()
    least: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": "x", "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/v1/responses": {"input": "x", "max_output_tokens": 1},
    }
    having: dict[str, list[str]] = {}
    for path in least:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = (
            document["components"]["schemas"][content["$ref"].rpartition("/")[2]] if "$ref" in content else content
        )
        for field in schema["properties"]:
            having.setdefault(field, []).append(path)
    for turn, (field, paths) in enumerate(having.items()):
        for i, value in enumerate(FIELDS):
            for path in paths if every else paths[(turn + i) % len(paths) :][:1]:
                answer = server.post({**least[path], field: value}, path)
                assert answer.status_code in (200, 400, 404), (path, field, value, answer.text)
        assert server.http.get("/health").status_code == 200
