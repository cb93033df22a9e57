"""Ranks that join an engine over the network, here from processes of the same machine."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
import ranks
from asking import accepted, assert_same, half_repeating, run, with_params
from checkpoints import write_llama
from conftest import MakeLLM, Pair, Plain, proposer_options
from ranks import free_address, joining

from parlay import ConfigError, RankError, SamplingParams
from parlay.engine import joined_ranks
from parlay.engine import joining as joining_module
from parlay.engine.engine import Engine
from parlay.engine.joining import RankListener, connect, listen, parse_address

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_ranks")]

PROGRAM = ranks.COMMAND
KEY = "a key for the ranks of these tests"
SOON = 20.0
LOOPBACK = "0100007F"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_RANK_KEY", KEY)


@pytest.fixture
def address() -> str:
    return free_address()


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def test_same_tokens(
    make_llm: MakeLLM, plain: Plain, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """And the numerics id of one rank; the ranks end with the engine. The third has no head of these models.

    Only the address given listens while ranks join; the store has no key, so it goes when all have found each other.
    """
    asks = [with_params(ask, max_tokens=16) for ask in half_repeating(0.7)[:8]]
    config = {"method": "eagle3", "num_speculative_tokens": 6, **proposer_options("eagle3", models["bfloat16"])}
    config["draft_tensor_parallel_size"] = 3
    monkeypatch.setattr(ranks, "COMMAND", PROGRAM)  # processes whose sockets are looked at must be the ranks
    seen = list[set[str]]()
    before = listening(os.getpid())
    real = joined_ranks.connect_ranks

    def connect_ranks(*args: Any) -> Any:
        found = real(*args)
        seen.append(listening(os.getpid()) - before)
        return found

    monkeypatch.setattr(joined_ranks, "connect_ranks", connect_ranks)
    with joining(address, "--once", ranks=2) as processes:
        llm = make_llm(speculative_config=config, dtype="bfloat16", tensor_parallel_size=3, rank_address=address)
        assert seen == [{LOOPBACK}]
        assert llm.engine.ranks._store is None  # type: ignore[attr-defined]
        for pid in (os.getpid(), *(process.pid for process in processes)):
            assert listening(pid) - before <= {LOOPBACK}
        ports = [port for port in (llm.engine.ranks._port,) if is_open(port)]  # type: ignore[attr-defined]
        assert not ports, "nobody else is to join"
        found = run(llm, asks)
        assert_same(found, plain("bfloat16", asks))
        assert accepted(found) > 0
        assert llm.numerics_id == make_llm(dtype="bfloat16").numerics_id
        llm.engine.close()
        assert listening(os.getpid()) <= before, "nothing is left"
        assert [process.wait(SOON) for process in processes] == [0, 0]


def test_a_stage_that_joins(make_llm: MakeLLM, plain: Plain, models: dict[str, Pair], address: str) -> None:
    asks = half_repeating(0.0)[:8]
    config = {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        **proposer_options("draft_model", models["float32"]),
    }
    with joining(address, "--once"):
        llm = make_llm(speculative_config=config, pipeline_parallel_size=2, rank_address=address)
        assert_same(run(llm, asks), plain("float32", asks))
        llm.engine.close()


def test_a_rank_that_is_killed_ends_the_engine(make_llm: MakeLLM, address: str) -> None:
    """Until then, of two key heads each machine has one, and room for twice the tokens in the same memory."""
    alone = make_llm(kv_cache_memory=1 << 20).engine.memory
    with joining(address, "--once") as (process,):
        engine = make_llm(kv_cache_memory=1 << 20, tensor_parallel_size=2, rank_address=address).engine
        assert engine.memory.blocks == 2 * alone.blocks
        assert engine.memory.cache == alone.cache
        (request,) = engine.add("abc", SamplingParams(max_tokens=100, ignore_eos=True))
        engine.step()
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(RankError, match="start the engine again"):
            finish(engine)
        engine.abort(request)


def test_a_rank_with_another_model_is_refused(make_llm: MakeLLM, address: str, tmp_path: Path) -> None:
    """Of the same shape. Both sides say why, and the rank does not try again."""
    other = write_llama(tmp_path, seed=77)
    with joining(address, "--model", str(other)) as (process,):
        with pytest.raises(ConfigError, match="rank 1 would compute different bits than rank 0") as raised:
            make_llm(tensor_parallel_size=2, rank_address=address)
        assert refused(process) == [turned_round(str(raised.value))]


def test_a_rank_with_other_kernels_is_refused(make_llm: MakeLLM, address: str) -> None:
    with joining(address, PARLAY_KERNELS="reference") as (process,):
        with pytest.raises(ConfigError, match=r"rank 1 would compute different bits .*: \S+ here, reference"):
            make_llm(tensor_parallel_size=2, rank_address=address)
        (line,) = refused(process)
        assert re.match(r"this rank would compute different bits than rank 0: reference\S* here, \S+ there; ", line)


def test_a_machine_with_less_memory_is_refused(make_llm: MakeLLM, address: str) -> None:
    """Before it allocates anything; it does not try again."""
    with joining(address, PARLAY_MEMORY="1000") as (process,):
        with pytest.raises(RankError, match="rank 1 could not start: CapacityError: this rank's weights would take"):
            make_llm(tensor_parallel_size=2, rank_address=address)
        (line,) = refused(process)
        assert "but only 1000 bytes are free on its machine; lower the engine's kv_cache_memory" in line


def refused(process: "subprocess.Popen[str]") -> list[str]:
    """Return what a rank says that ends by itself and was refused."""
    assert process.wait(SOON) == 2
    assert process.stderr is not None
    said = process.stderr.read().splitlines()
    assert not any("Traceback" in line for line in said)
    return [line.removeprefix("parlay: ") for line in said if line.startswith("parlay: ")]


def turned_round(text: str) -> str:
    """Return the engine's sentence about rank 1 as that rank gets it."""
    text = re.sub(r"(?<=[:;] )(\S+) here, (\S+) there", r"\2 here, \1 there", text)
    return text.replace("rank 1 would", "this rank would")


def test_an_engine_of_another_version(address: str) -> None:
    """The command waits for one, and says so."""
    with joining(address) as (process,):
        assert process.stderr is not None
        assert f"no engine waits at {address} yet" in process.stderr.readline()
        server = listen(parse_address(address))
        connection, _ = RankListener(server, KEY.encode()).next(SOON)
        connection.send_bytes(msgspec.msgpack.encode({"model": "tiny-code"}))
        (line,) = refused(process)
        assert line == (
            f"the engine at {address} is another version of parlay; install the same version on all machines"
        )
        connection.close()
        server.close()


def test_a_rank_without_the_model_is_refused(make_llm: MakeLLM, address: str) -> None:
    with (
        joining(address, "--once", "--model", "nowhere-at-all"),
        pytest.raises(RankError, match="rank 1 could not start: ModelError: there is no model"),
    ):
        make_llm(tensor_parallel_size=2, rank_address=address)


def test_who_does_not_know_the_key_is_not_admitted(address: str, caplog: pytest.LogCaptureFixture) -> None:
    place = parse_address(address)
    with listen(place) as server:
        admitted = []
        thread = threading.Thread(target=lambda: admitted.append(RankListener(server, b"right").next(SOON)))
        thread.start()
        with pytest.raises(ConfigError, match="has another key; set PARLAY_RANK_KEY"):
            connect(place, b"wrong")
        with socket.create_connection(place) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 9)
        connection, host = connect(place, b"right")
        thread.join(SOON)
        assert host == admitted[0][1] == "127.0.0.1"
        assert caplog.text.count("was not admitted as a rank") == 2
        connection.send_bytes(b"here")
        assert admitted[0][0].recv_bytes() == b"here"
        connection.close()
        admitted[0][0].close()


def test_nobody_joins(address: str) -> None:
    with listen(parse_address(address)) as server, pytest.raises(TimeoutError):
        RankListener(server, b"key").next(0.05)


def test_an_address_that_is_taken(make_llm: MakeLLM, address: str) -> None:
    with (
        listen(parse_address(address)),
        pytest.raises(ConfigError, match=f"cannot join at {address}: Address already"),
    ):
        make_llm(tensor_parallel_size=2, rank_address=address)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="an address of ranks is HOST:PORT"):
        parse_address(text)


def test_what_is_refused(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="rank_address is for several ranks"):
        make_llm(rank_address="127.0.0.1:29500")
    monkeypatch.setenv("PARLAY_RANK_KEY", "short")
    with pytest.raises(ConfigError, match="set PARLAY_RANK_KEY to the same 16 characters"):
        make_llm(tensor_parallel_size=2, rank_address="127.0.0.1:29500")


def strangers(place: tuple[str, int], count: int, sends: bytes = b"") -> list[socket.socket]:
    made = [socket.create_connection(place) for _ in range(count)]
    for one in made:
        one.sendall(sends)
    return made


@pytest.mark.parametrize(("count", "sends"), [(12, b""), (90, b""), (8, b"\0\0"), (3, b"\0\0\0\x14#")])
def test_strangers_keep_nobody_out(address: str, count: int, sends: bytes) -> None:
    """Who says nothing, or begins a message and stops; many at once."""
    place, began = parse_address(address), monotonic()
    with listen(place) as server, ThreadPoolExecutor(1) as pool:
        entrance = RankListener(server, b"right")
        others = strangers(place, count, sends)
        admitted = pool.submit(entrance.next, SOON)
        connection, _ = connect(place, b"right")
        mine, host = admitted.result()
        assert (host, monotonic() - began < 4) == ("127.0.0.1", True)
        for one in (connection, mine, *others):
            one.close()
        entrance.close()


def test_who_sends_a_byte_now_and_then_is_disconnected_all_the_same(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The time to prove oneself is that of all messages together, here and on the rank's side."""
    monkeypatch.setattr(joining_module, "_GREETING", 0.3)
    place = parse_address(address)
    with listen(place) as server, ThreadPoolExecutor(1) as pool:
        entrance = RankListener(server, b"right")
        pool.submit(entrance.next, 2.0)
        (stranger,) = strangers(place, 1)
        stranger.recv(100)  # the challenge
        sent = drip(stranger)
        assert sent < 30, "it was never disconnected"
    assert "was not admitted as a rank" in caplog.text
    with listen(place) as server, ThreadPoolExecutor(1) as pool:
        refused = pool.submit(connect, place, b"right")
        accepted, _ = server.accept()
        assert drip(accepted) < 30
        with pytest.raises(ConnectionError, match="disconnected"):
            refused.result()


def drip(stranger: socket.socket) -> int:
    """Send a message byte by byte until the other side has had enough; return how many were taken."""
    with stranger:
        for count in range(30):
            stranger.settimeout(0.05)
            try:
                stranger.sendall(b"\0\0\0\xc8" if not count else b"#")
                if not stranger.recv(1):
                    return count
            except TimeoutError:
                pass
            except OSError:
                return count
    return 30


def listening(pid: int) -> set[str]:
    """Return the addresses, as the kernel writes them, at which a process listens."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(file.readlink().name)
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *more = line.split()
            if state == "0A" and f"socket:[{more[5]}]" in sockets:
                found.add(local.split(":")[0])
    return found


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_a_script_that_simply_ends(models: dict[str, Pair], address: str) -> None:
    """The threads that exchange tensors have let go of them before the interpreter goes."""
    script = (
        "import sys; from parlay import LLM, SamplingParams\n"
        f"llm = LLM({str(models['float32'].target)!r}, tensor_parallel_size=2, rank_address={address!r})\n"
        "from parlay.parallel import gloo; real = gloo.Gloo.close\n"
        "gloo.Gloo.close = lambda self: (real(self), print('closed', flush=True))\n"
        "llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))\n"
    )
    with joining(address, "--once") as (process,):
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr
        assert process.wait(SOON) == 0
