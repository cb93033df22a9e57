"""Exceptions from outside at any moment: the call ends, and the next one is right."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import pytest
from asking import assert_whole, essence
from conftest import MakeLLM, Pair, proposer_options
from crossing import crossed

import parlay
from parlay import LLM, EngineFaultError, RankError, SamplingParams
from parlay.drafting.belief import Belief
from parlay.drafting.device_length import DeviceLength
from parlay.drafting.policy import Policy
from parlay.engine import fair_lock
from parlay.engine.scheduler import Scheduler
from parlay.engine.step import Worker
from parlay.interrupts import DeferredSignals
from parlay.proposers.methods.ngram import Proposer as NGram
from parlay.runner.graphs import Graphs

SOURCE = str(Path(parlay.__file__).parent)
PROMPTS = [[*range(40, 52)] * 3, [7, 8], [9] * 20]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=8, logprobs=1, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=1, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=2, max_tokens=7, presence_penalty=0.2, ignore_eos=True),
]
OTHER = SamplingParams(temperature=0.7, seed=3, max_tokens=12, ignore_eos=True)
FORMED = SamplingParams(temperature=0.7, seed=3, max_tokens=12, structured_outputs={"regex": "[a-z]{20}"})


# Between the lines of this file nothing can be raised: the interpreter looks for signals and for exceptions of other
# threads after calls, and locks are taken and released by single ones.
LOCKS = fair_lock.__file__


class Stop(BaseException):
    """What comes from outside."""


class Lines:
    """Counts the lines of parlay that run, and raises at one of them."""

    def __init__(self, stop: int = 0, kind: type[BaseException] = Stop) -> None:
        self.count, self._stop, self._kind = 0, stop, kind

    def __enter__(self) -> "Lines":
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        file = frame.f_code.co_filename
        return self._line if file.startswith(SOURCE) and file != LOCKS else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self.count += event == "line"
        if event == "line" and self.count == self._stop:
            sys.settrace(None)
            raise self._kind
        return self._line


def limit_steps(monkeypatch: pytest.MonkeyPatch, llm: LLM, most: int = 20_000) -> None:
    """Have an engine that gets nowhere fail instead of going on for ever."""
    steps, step = count(), llm.engine.step

    def limited() -> Any:
        assert next(steps) < most
        return step()

    monkeypatch.setattr(llm.engine, "step", limited)


def answers(llm: LLM) -> list[Any]:
    return [essence(output.outputs[0]) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


CONFIGS: dict[str, Any] = {
    "plain": None,
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "lengths": "goodput"},
    "auto": {"method": "auto", "lengths": "goodput"},
    "draft_model": "draft_model",
    "eagle3": "eagle3",
}


@crossed(name=list(CONFIGS), formed=[False, True])
def test_at_any_line(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, name: str, formed: bool) -> None:
    """A stream that was open meanwhile goes on and is right, or ends with an error that says why."""
    config, other = CONFIGS[name], FORMED if formed else OTHER
    options: dict[str, Any] = {"num_blocks": 48, "max_num_batched_tokens": 48}
    llm = (
        make_llm(config, 4, **options) if isinstance(config, str) else make_llm(speculative_config=config, **options)
    )
    limit_steps(monkeypatch, llm)
    *_, last = llm.stream([5, 6, 7], other)
    expected, whole = answers(llm), essence(last.outputs[0])
    with Lines() as lines:
        answers(llm)
    stopped = ended = 0
    for stop in range(1 + len(name) * 37, lines.count, lines.count // 24):
        stream = llm.stream([5, 6, 7], other)
        next(stream)
        with suppress(Stop), Lines(stop) as lines:
            answers(llm)
            # Lengths that follow measured times change how many lines run.
            assert lines.count < stop, "the exception was swallowed"
        stopped += lines.count == stop
        try:
            *_, last = stream
            assert essence(last.outputs[0]) == whole
        except EngineFaultError:
            ended += 1
        assert answers(llm) == expected
        assert not llm.engine.busy
        assert_whole(llm.engine)
    assert stopped >= 12
    assert ended < 12


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_at_lines_of_a_step(make_llm: MakeLLM, every: int) -> None:
    """Of the step that commits."""
    llm = make_llm("ngram", 3, num_blocks=24)
    expected = answers(llm)

    def begin() -> Any:
        requests = [llm.submit(prompt, own)[0] for prompt, own in zip(PROMPTS, PARAMS, strict=True)]
        for _ in range(3):
            llm.engine.step()
        return requests

    requests = begin()
    with Lines() as lines:
        llm.engine.step()
    llm.engine.abort(*requests)
    for stop in range(1, lines.count, every):
        requests = begin()
        with pytest.raises(Stop), Lines(stop):
            llm.engine.step()
        llm.engine.abort(*requests)
        assert_whole(llm.engine)
    assert answers(llm) == expected


def test_what_was_queued_is_not_left_behind(make_llm: MakeLLM) -> None:
    """While prompts are added, and while a stream begins."""
    llm = make_llm("ngram", 3)
    with Lines() as lines:
        stream = llm.stream(PROMPTS[0], OTHER)
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.busy, "a stream that was closed before its first output"
    for stop in range(1, lines.count):
        with pytest.raises(Stop), Lines(stop):
            llm.stream(PROMPTS[0], OTHER)
        assert not llm.engine.busy, stop
    assert_whole(llm.engine)


# ----------------------------------------------------------------------------------------------------------- signals


@contextmanager
def handling(number: int, handler: Callable[[int, Any], Any]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM, signal.SIGTERM])
def test_signals_wait_until_a_step_is_done(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """So the step's tokens are not lost, no request's blocks are, and other calls need not be mended."""
    llm, real = make_llm("ngram", 3), Worker.finish

    def boom(*_: object) -> None:
        raise Stop

    def finish(self: Worker) -> Any:
        os.kill(os.getpid(), number)
        return real(self)

    requests = [llm.submit(prompt, own)[0] for prompt, own in zip(PROMPTS, PARAMS, strict=True)]
    monkeypatch.setattr(Worker, "finish", finish)
    with handling(number, boom):
        with pytest.raises(Stop):
            llm.engine.step()
        assert signal.getsignal(number) is boom
    assert len(requests[0].output_tokens) > 0
    assert not llm.engine._interrupted
    llm.engine.abort(*requests)


def test_a_second_ctrl_c_does_not_wait() -> None:
    region, came = DeferredSignals(), list[str]()

    def handler(number: int, frame: object) -> None:
        came.append("handled")
        raise KeyboardInterrupt

    def twice() -> None:
        with region:
            os.kill(os.getpid(), signal.SIGINT)
            came.append("once")
            os.kill(os.getpid(), signal.SIGINT)
            came.append("never reached")

    with handling(signal.SIGINT, handler):
        with pytest.raises(KeyboardInterrupt):
            twice()
        assert came[:2] == ["once", "handled"]
        assert "never reached" not in came
        assert signal.getsignal(signal.SIGINT) is handler
        with region:
            pass  # nothing is left of it


def test_signals_that_nobody_handles_in_python_and_other_threads() -> None:
    region = DeferredSignals()
    with handling(signal.SIGUSR1, signal.SIG_IGN), region:
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGUSR1)
    before = signal.getsignal(signal.SIGINT)

    def elsewhere() -> None:
        with region:
            assert signal.getsignal(signal.SIGINT) is before

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()


# ------------------------------------------------------------------------------------------------- errors of drafting


@crossed(
    place=[
        (Belief, "apply"),
        (Belief, "judge"),
        (Policy, "begin"),
        (Policy, "choose"),
        (Policy, "timed"),
        (DeviceLength, "choose"),
        (DeviceLength, "judged"),
    ],
    times=[1, 3, 1000],
)
def test_an_error_in_what_drafting_learns_costs_no_request(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[type, str],
    times: int,
) -> None:
    """And where it comes again and again, drafting ends."""
    cls, method = place
    expected = answers(make_llm())
    config = CONFIGS["auto"]
    if cls is DeviceLength:
        config = {"method": "draft_model", "lengths": "goodput", **proposer_options("draft_model", models["float32"])}
    llm = make_llm(speculative_config=config)
    real, calls = getattr(cls, method), iter(range(times))

    def sometimes(self: Any, *args: Any, **more: Any) -> Any:
        if next(calls, None) is not None:
            raise ZeroDivisionError("boom")
        return real(self, *args, **more)

    monkeypatch.setattr(cls, method, sometimes)
    for _ in range(4):
        assert answers(llm) == expected
        assert_whole(llm.engine)


# ----------------------------------------------------------------------------------------------------- several ranks


@pytest.mark.parametrize(
    "split", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tensor", "pipeline"]
)
@pytest.mark.usefixtures("forked_ranks")
def test_ranks(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, split: dict[str, int]) -> None:
    """Between what ranks do together, nothing is lost; within it, the engine says that it cannot go on."""
    llm = make_llm("ngram", 3, **split)
    expected = answers(llm)

    def stops(cls: type, name: str, nth: int) -> None:
        real, calls = getattr(cls, name), iter(range(1, nth + 1))

        def work(self: Any, *args: Any, **more: Any) -> Any:
            if next(calls, None) == nth:
                raise Stop
            return real(self, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(cls, name, work)
            with pytest.raises(Stop):
                answers(llm)

    for nth in (1, 4):
        for cls, name in ((Scheduler, "plan"), (NGram, "propose"), (Scheduler, "_advance"), (Worker, "finish")):
            stops(cls, name, nth)
            assert answers(llm) == expected
            assert_whole(llm.engine)
    stops(Graphs, "forward", 3)
    for _ in range(2):
        with pytest.raises(RankError, match="interrupted while its ranks computed together; start the engine again"):
            answers(llm)
        assert_whole(llm.engine)
    began = perf_counter()
    llm.engine.close()
    assert perf_counter() - began < 4, "the others wait for what never comes, until they are told"


def test_a_fork_has_no_ranks(make_llm: MakeLLM) -> None:
    """Neither does it end those of the engine, nor send them anything."""
    llm = make_llm(tensor_parallel_size=2)
    expected = answers(llm)
    child = os.fork()
    if child == 0:
        try:
            llm.engine.close()
            llm.generate(PROMPTS[0], PARAMS[0])
        except RankError as error:
            os._exit("not to a fork" in str(error))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert answers(llm) == expected
