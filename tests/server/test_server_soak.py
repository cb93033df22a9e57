"""The server under load for long: `PARLAY_SOAK_SECONDS` of it. Its tables are in docs/reports."""

import asyncio
import os
import time
from pathlib import Path
from random import Random

import httpx
import pytest
from checkpoints import write_llama
from flooding import FLOODS, Neighbour, flooded, settle
from hostile import BODIES, CONNECTIONS, Patrol, Watch, longest
from server_process import ServerProcess, resident
from soaking import Soak, make_cases

SECONDS = float(os.environ.get("PARLAY_SOAK_SECONDS", "60"))
STREAM = {"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "temperature": 0.8, "seed": 1}
SPECULATE = ("--speculative-config", '{"method": "ngram"}')

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("soak") / "target"
    return str(write_llama(path, seed=2, scale=7.0, calm=0.2, max_position_embeddings=2048))


def test_two_hundred_clients(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    rng = Random(7)
    cases = make_cases(model, 80, rng)
    with ServerProcess(model, *SPECULATE, "--num-blocks", "2048", "--max-open", "400") as server:
        for case in cases[:20]:  # what is loaded once and kept
            assert server.post(case.body).status_code == 200
        server.http.close()
        server.http = httpx.Client(base_url=server.url, timeout=60, trust_env=False)
        figures = asyncio.run(Soak(server, cases, rng).run(200, SECONDS, kills=2))
        with capsys.disabled():
            print("\n" + figures.table())
        assert not figures.wrong, figures.wrong[:5]
        assert len(figures.restarts) == 2
        assert figures.ends["complete"] > SECONDS
        assert figures.descriptors[-1][0] <= figures.descriptors[0][0] + 2
        quarter = len(figures.memory) // 4
        early, late = figures.memory[quarter : 2 * quarter], figures.memory[-quarter:]
        for process in (1, 2):
            grown = min(m[process] for m in late) - min(m[process] for m in early)
            assert grown < 64, f"{grown:.0f} MiB more"
        assert server.stop() == 0
        assert not server.said("Traceback")


def test_hostile_clients_beside_a_stream(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["| meanwhile | seconds | largest gap, ms | front, MiB |", "|---|---|---|---|"]
    with ServerProcess(model, *SPECULATE, "--num-blocks", "2048", "--body-timeout", "2") as server:
        expected = Watch(server.url, STREAM).join()
        spans: dict[str, tuple[float, float, float]] = {}
        patrol = Patrol(server.url, STREAM)
        began = time.perf_counter()
        time.sleep(2)
        spans["nothing"] = began, time.perf_counter(), resident(server.pid)
        for name, (path, make, statuses) in BODIES.items():
            content = make()
            began = time.perf_counter()
            for _ in range(3):
                answer = server.http.post(path, content=content, headers={"Content-Type": "application/json"})
                assert answer.status_code in statuses
            spans[name] = began, time.perf_counter(), resident(server.pid)
            time.sleep(0.2)
        for name, (attack, statuses) in CONNECTIONS.items():
            began = time.perf_counter()
            assert attack(server.port) <= statuses
            spans[name] = began, time.perf_counter(), resident(server.pid)
            time.sleep(0.2)
        streams = patrol.end()
        for name, (begin, end, memory) in spans.items():
            rows.append(f"| {name} | {end - begin:.2f} | {longest(streams, begin, end) * 1e3:.0f} | {memory:.0f} |")
        with capsys.disabled():
            print("\n" + "\n".join(rows))
        assert {(text, error) for _, text, error in streams} == {(expected.text, None)}


@pytest.mark.parametrize("name", FLOODS)
def test_a_key_that_floods_beside_another(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Medians with and without the flood, taken in turns, since a machine's speed varies."""
    (tmp_path / "keys").write_text("alice alice-s-own-key\nbob bob-s-own-key\n")
    chat = {"messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 256, "ignore_eos": True}
    large = {"prompt": "a", "max_tokens": 1, "user": "x" * 300_000}
    with ServerProcess("tiny-code", "--api-key-file", str(tmp_path / "keys")) as server:
        asked = ("/v1/chat/completions", chat), ("/v1/completions", large)
        neighbours = [Neighbour(server.port, "bob-s-own-key", *one) for one in asked]
        for one in neighbours:
            one.median(1.0)
        before, peak, ratios, rows = resident(server.pid), 0.0, [], []
        with flooded(server.port, "alice-s-own-key", name) as flood:
            for what, neighbour in zip(("a chat of 256 tokens", "a body of 300 KB"), neighbours, strict=True):
                pairs = []
                for _ in range(max(2, int(SECONDS / 20))):
                    time.sleep(1.0)
                    beside = neighbour.median(2.0)
                    peak = max(peak, resident(server.pid))
                    flood.stop()
                    settle(server.pid)
                    pairs.append((beside, neighbour.median(2.0)))
                    flood.go_on()
                beside, alone = (sorted(times)[len(times) // 2] for times in zip(*pairs, strict=True))
                ratios.append(sorted(a / b for a, b in pairs)[len(pairs) // 2])
                rows.append(f"| {name} | {what} | {1e3 * alone:.0f} | {1e3 * beside:.0f} | {ratios[-1]:.1f} |")
        with capsys.disabled():
            print("\n| flood | beside it | alone, ms | with it, ms | ratio |\n|---|---|---|---|---|")
            print("\n".join(rows), f"\nfront: {before:.0f} -> {peak:.0f} MiB; the flood got {dict(flood.statuses)}")
        assert set(flood.statuses) <= {200, 400, 429}
        assert peak < before + 256
        assert ratios[0] <= 2
        assert server.stop() == 0
