"""Templates that mean harm are ended in a process of their own, while everybody else goes on."""

import asyncio
import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama
from text.hostile_templates import HOSTILE, KINDS

from parlay import AsyncLLM, RequestError, SamplingParams
from parlay.checkpoints.find import find_model
from parlay.text.chat import ChatOptions
from parlay.text.template_process import SECONDS, TemplateProcess
from parlay.text.tokenizer import TextCodec

VARIABLES: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "tools": None}
ENDLESS = HOSTILE[0]
PATIENCE = 2.0  # seconds for a rendering in these tests
SHORT = 0.25  # where many do not end, in a process that runs already


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess()
    yield made
    made.close()


def pid_of(process: TemplateProcess) -> int:
    return process._started[0][0].pid


def test_a_template_is_run(process: TemplateProcess) -> None:
    for i in range(3):
        assert process.run("{{ messages[0].content }}-{{ n }}", {**VARIABLES, "n": i}) == f"hello-{i}"
    first = pid_of(process)
    with pytest.raises(RequestError, match=r"^the chat template refuses these messages: no"):
        process.run("{{ raise_exception('no') }}", VARIABLES)
    with pytest.raises(RequestError, match="the chat template refuses these messages: "):
        process.run("{{ 1 / 0 }}", VARIABLES)
    with pytest.raises(RequestError, match="the chat template refuses these messages: "):
        process.run("{% if %}", VARIABLES)
    with pytest.raises(RequestError, match="far more text than a conversation has"):
        process.run("{{ 'a' * 2**25 }}", VARIABLES)
    assert process.run("{{ 'é\ud800' }}", VARIABLES) == "é\ud800"
    assert pid_of(process) == first, "a refusal ends nothing"
    with pytest.raises(RequestError, match="needs far more memory than a conversation"):
        process.run("{{ 'a' * 10**10 }}", VARIABLES)
    process._seconds = SHORT
    with pytest.raises(RequestError, match="does not come to an end"):
        process.run(ENDLESS, VARIABLES)


def test_what_a_template_is_given(process: TemplateProcess) -> None:
    assert process.run("{{ x }}", {"x": {"a": (1, 2.5, None, True)}}) == "{'a': [1, 2.5, None, True]}"
    with pytest.raises(RequestError, match="the chat template takes only JSON values: Event is none"):
        process.run("{{ x }}", {"x": threading.Event()})
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RequestError, match="takes only JSON values"):
        process.run("{{ x }}", {"x": loop})


def test_a_shipped_template_needs_no_process(process: TemplateProcess) -> None:
    codec = TextCodec(find_model("tiny-code"))
    assert codec.template is not None
    process.run(codec.template, {**VARIABLES, "add_generation_prompt": True})
    assert process._started == []


def test_a_process_that_died_is_started_anew(process: TemplateProcess) -> None:
    assert process.run("a", VARIABLES) == "a"
    first = pid_of(process)
    os.kill(first, signal.SIGKILL)
    process._started[0][0].wait()
    assert process.run("b", VARIABLES) == "b"
    assert pid_of(process) != first


@pytest.mark.parametrize("waiting", [0, 4])
def test_closing_ends_what_is_running(process: TemplateProcess, waiting: int) -> None:
    """Those who wait for their turn start no process of their own."""
    process.run("a", VARIABLES)
    failed: list[str] = []

    def ask() -> None:
        with pytest.raises(RequestError) as error:
            process.run(ENDLESS, VARIABLES)
        failed.append(str(error.value))

    asking = [threading.Thread(target=ask) for _ in range(1 + waiting)]
    began = time.monotonic()
    for one in asking:
        one.start()
    time.sleep(0.2)
    process.close()
    for one in asking:
        one.join(PATIENCE)
    assert time.monotonic() - began < 2 * PATIENCE
    assert failed == ["no chat template is run any more: the engine was closed; start another"] * (1 + waiting)
    assert process._started == []


def test_an_event_loop_goes_on_while_a_template_does_not_end(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    (model / "chat_template.jinja").write_text(ENDLESS)

    async def main() -> None:
        async with AsyncLLM(str(model), max_model_len=64) as engine:
            engine.codec._runners["own"]._seconds = PATIENCE / 2
            chat = engine.chat([{"role": "user", "content": "hi"}])
            asked = asyncio.ensure_future(anext(chat))
            turns = 0
            while not asked.done():
                await asyncio.sleep(0.01)
                turns += 1
            with pytest.raises(RequestError, match="the chat template does not come to an end"):
                await asked
            assert turns > 20

    asyncio.run(main())


def test_nobody_leaves_a_process_behind() -> None:
    process = TemplateProcess()
    process.run("a", VARIABLES)
    child = process._started[0][0]
    del process
    gc.collect()
    assert child.poll() is not None
    script = (
        "from parlay.text.template_process import TemplateProcess\n"
        "p = TemplateProcess(); p.run('a', {}); print(p._started[0][0].pid)"
    )
    done = subprocess.run([os.sys.executable, "-c", script], capture_output=True, text=True, check=True)  # type: ignore[attr-defined]
    assert not Path(f"/proc/{int(done.stdout)}").exists()


every = pytest.mark.parametrize(
    "template",
    [pytest.param(one, marks=() if one in KINDS else pytest.mark.soak, id=str(i)) for i, one in enumerate(HOSTILE)],
)


@every
def test_hostile_templates_end_while_a_stream_goes_on(template: str, streaming: "Streaming", tmp_path: Path) -> None:
    codec, runner = streaming.codec, streaming.runner
    runner.run("a", VARIABLES)  # a busy machine may take seconds to start a process
    runner._seconds = SHORT
    before, began = streaming.tokens, time.monotonic()
    try:
        codec.chat([{"role": "user", "content": "hi"}], ChatOptions(chat_template=template))
    except RequestError as error:
        assert "template" in str(error)  # noqa: PT017 - or it makes little
    took = time.monotonic() - began
    assert took < SHORT + 1.5
    if took > SHORT / 2:
        assert streaming.tokens - before > took, "the engine stood still"
    runner._seconds = SECONDS
    assert codec.chat([{"role": "user", "content": "hi"}], ChatOptions(chat_template="{{ 1 + 1 }}")) == "2"


class Streaming:
    """An engine that streams without end, in threads of its own."""

    def __init__(self) -> None:
        self.tokens = 0
        self.codec = TextCodec(find_model("tiny-code"))
        self.runner = self.codec._runners["given"] = TemplateProcess()
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._stream()), daemon=True)
        self._thread.start()

    async def _stream(self) -> None:
        engine = AsyncLLM("tiny-code", speculative_config=None)
        params = SamplingParams(max_tokens=1500, ignore_eos=True)
        while not self._over.is_set():
            async for _ in engine.generate("def f(x):", params):
                self.tokens += 1
                if self._over.is_set():
                    break
        await engine.close()

    def end(self) -> None:
        self._over.set()
        self._thread.join(30)
        self.codec.close()


@pytest.fixture(scope="module")
def streaming() -> Iterator[Streaming]:
    made = Streaming()
    while not made.tokens:
        time.sleep(0.05)
    yield made
    made.end()
