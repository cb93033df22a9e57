"""The engine's side of the sockets, in this process: what is told when the front does not listen for a while."""

import time
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest
import zmq
from asking import assert_whole
from conftest import MakeLLM
from serving import wait_for

from parlay import EngineFaultError, SamplingParams
from parlay.engine.engine import Engine
from parlay.link.engine_server import EngineServer
from parlay.link.protocol import Abort, Add, Command, Outputs, Stop, decode_report, encode, plain_params
from parlay.link.thread import ThreadTransport
from parlay.sampling import grammar
from parlay.sampling.grammar import Grammars
from parlay.server.remote.transport import SocketTransport
from parlay.text.detokenizer import Detokenizer

PROMPT = tuple(range(40, 52)) * 2
LIMIT = 20.0


class Front:
    """Two sockets to an engine that serves in a thread; few messages fit into them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._context = zmq.Context()
        self._pairs: list[Any] = []  # held until all are closed
        for name, near, far in (("commands", zmq.PUSH, zmq.PULL), ("reports", zmq.PULL, zmq.PUSH)):
            ends = [self._context.socket(near), self._context.socket(far)]
            for end in ends:
                end.setsockopt(zmq.SNDHWM, 1 if name == "reports" else 0)
                end.setsockopt(zmq.RCVHWM, 1 if name == "reports" else 0)
            ends[0].bind(f"inproc://{name}")
            ends[1].connect(f"inproc://{name}")
            self._pairs.append(ends)
        (self._commands, commands), (self._reports, reports) = self._pairs
        self._transport = SocketTransport(commands, reports)
        self._thread = Thread(target=EngineServer(engine, self._transport).run, daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._commands.send(encode(command))

    def read(self) -> Outputs:
        assert self._reports.poll(LIMIT * 1000), "nothing comes"
        report = decode_report(self._reports.recv())
        assert isinstance(report, Outputs)
        return report

    def read_until(self, enough: Callable[[list[Outputs]], bool]) -> list[Outputs]:
        reports: list[Outputs] = []
        while not enough(reports):
            reports.append(self.read())
        return reports

    def close(self) -> None:
        self.send(Stop())
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        self._transport.__exit__()
        self._context.destroy(linger=0)


@pytest.fixture
def front(make_llm: MakeLLM) -> Iterator[Front]:
    front = Front(make_llm("ngram").engine)
    yield front
    front.close()
    assert_whole(front.engine)


def add(key: int, **params: Any) -> Add:
    return Add(key, PROMPT, plain_params(SamplingParams(temperature=0.7, seed=key, ignore_eos=True, **params)))


def finished(reports: list[Outputs], count: int) -> bool:
    return sum(d.finish_reason is not None for r in reports for d in r.deltas) == count


def test_nothing_piles_up(front: Front, make_llm: MakeLLM) -> None:
    """The requests are over before the front reads a word: it gets all there is in a few messages."""
    keys = range(3)
    for key in keys:
        front.send(add(key, max_tokens=100))
    wait_for(lambda: front.engine.stats.finished["length"] == 3)
    steps = front.engine.stats.steps
    reports = front.read_until(lambda reports: finished(reports, 3))
    assert len(reports) <= 5 < steps
    expected = make_llm().generate(
        [list(PROMPT)] * 3, [SamplingParams(**add(k, max_tokens=100).params) for k in keys]
    )
    for key, output in zip(keys, expected, strict=True):
        deltas = [d for r in reports for d in r.deltas if d.key == key]
        assert [t for d in deltas for t in d.tokens] == list(output.outputs[0].token_ids)
        assert "".join(d.text for d in deltas) == output.outputs[0].text
    wait_for(lambda: not front.engine.busy)


def test_an_abort_while_nobody_listens(front: Front) -> None:
    """Nothing more is said of what was aborted, and its blocks are free."""
    for key in (1, 2):
        front.send(add(key, max_tokens=100))
    wait_for(lambda: front.engine.stats.steps > 20)
    front.send(Abort(1))
    wait_for(lambda: front.engine.stats.finished["length"] == 1)
    reports = front.read_until(lambda reports: finished(reports, 1))
    assert sum(len(d.tokens) for r in reports for d in r.deltas if d.key == 2) == 100
    assert not any(d.finish_reason for r in reports for d in r.deltas if d.key == 1)


def test_completions_of_one_prompt(front: Front) -> None:
    """One that fails takes the others along: there is one answer or none."""
    patch = pytest.MonkeyPatch()
    calls, real = iter(range(10)), Detokenizer.append

    def fail(self: Detokenizer, token: int) -> Any:
        return real(self, token) if next(calls, None) is not None else 1 // 0

    patch.setattr(Detokenizer, "append", fail)
    try:
        front.send(add(1, max_tokens=100, n=3))
        reports = front.read_until(lambda reports: any(r.failures for r in reports))
        (failure,) = reports[-1].failures
        assert (failure.key, type(failure.error())) == (1, EngineFaultError)
    finally:
        patch.undo()
    front.send(add(2, max_tokens=3))
    front.read_until(lambda reports: finished(reports, 1))


def test_snapshots_come_seldom_and_at_the_end(front: Front) -> None:
    began = time.monotonic()
    front.send(add(1, max_tokens=100))
    reports = front.read_until(lambda reports: finished(reports, 1))
    if reports[-1].stats is None:
        reports.append(front.read())
    snapshots = [r.stats for r in reports if r.stats is not None]
    assert snapshots[-1].emitted == 100
    assert snapshots[-1].blocks_used == 0
    assert len(snapshots) <= 2 + (time.monotonic() - began) / 0.1


def test_a_grammar_is_compiled_beside_the_steps(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go on while it is; those who leave meanwhile are gone; one that is refused fails alone."""
    released, compile_one = Event(), Grammars.compile
    monkeypatch.setattr(Grammars, "compile", lambda *args: released.wait(LIMIT) and compile_one(*args))
    for key, regex in ((1, "[a-f]{40}"), (2, "[a-f]{41}"), (3, "(")):
        front.send(Add(key, PROMPT, plain_params(SamplingParams(structured_outputs={"regex": regex}, max_tokens=99))))
    front.send(Abort(2))
    front.send(add(4, max_tokens=20))
    reports = front.read_until(lambda reports: finished(reports, 1))
    assert {d.key for r in reports for d in r.deltas} == {4}
    released.set()
    reports = front.read_until(lambda reports: finished(reports, 1) and any(r.failures for r in reports))
    assert {d.key for r in reports for d in r.deltas} == {1}
    assert len("".join(d.text for r in reports for d in r.deltas)) == 40
    ((key, kind),) = [(f.key, f.kind) for r in reports for f in r.failures]
    assert (key, kind) == (3, "RequestError")
    wait_for(lambda: not front.engine.busy)


def test_a_ring_is_never_missed() -> None:
    """Also where it comes while the commands are looked for, after the forms were: it ends the next wait."""
    transport = ThreadTransport(lambda outputs: None)
    transport.put(Stop())
    transport.wait(sending=False)
    transport.wake()
    assert [transport.receive(), transport.receive()] == [Stop(), None]
    waiting = Thread(target=transport.wait, kwargs={"sending": False}, daemon=True)
    waiting.start()
    waiting.join(LIMIT)
    assert not waiting.is_alive()


def test_what_one_tenant_has_compiled_is_not_at_hand_for_another(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, compile_one = [], grammar.Compiled
    monkeypatch.setattr(grammar, "Compiled", lambda *args: compiled.append(args) or compile_one(*args))
    params = plain_params(SamplingParams(structured_outputs={"regex": "[a-f]{7}"}, n=2))
    for key, tenant in enumerate(("one", "one", "other")):
        front.send(Add(key, PROMPT, params, tenant=tenant))
    front.read_until(lambda reports: finished(reports, 6))
    assert len(compiled) == 2
