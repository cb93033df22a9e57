"""An engine that hangs, talks nonsense or does not come back."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from conftest import Pair
from serving import last, until

from parlay import EngineDeadError, SamplingParams
from parlay.server.remote import client as client_module
from parlay.server.remote.client import EngineClient
from parlay.server.remote.engine_link import EngineLink
from parlay.server.remote.engine_process import REPORTS

PROMPT = list(range(40, 52))
ENDLESS = SamplingParams(temperature=0.7, seed=3, max_tokens=480, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3)
LIMIT = 40.0


@asynccontextmanager
async def started(target: Path, **options: Any) -> AsyncIterator[EngineClient]:
    client = EngineClient(target, max_model_len=512, num_blocks=256, **options)
    async with asyncio.timeout(LIMIT), client:
        yield client


async def recovers(client: EngineClient) -> None:
    """Expect it to be back, with nothing left of what was."""
    await until(lambda: client.state == "ready")
    await last(client, PROMPT, SHORT)
    assert not client._streams
    assert client.replicas[0]._patience._timer is None


def test_one_that_is_idle_or_slow_is_not(models: dict[str, Pair]) -> None:
    """The clock runs only while a request is open, and every report winds it up."""

    async def main() -> None:
        async with started(models["float32"].target, engine_timeout=0.5) as client:
            pid = client.pid
            for _ in range(2):
                await asyncio.sleep(0.6)
                async for _ in client.generate(PROMPT, SHORT):
                    await asyncio.sleep(0.3)  # a reader that takes longer than the engine may
            assert (client.pid, client.restarts) == (pid, 0)

    asyncio.run(main())


def test_one_that_talks_nonsense_is_replaced(models: dict[str, Pair]) -> None:
    async def main() -> None:
        async with started(models["float32"].target) as client:
            for report in (b"\xc1", b"", b"\x95\xa7Outputs\x91\x01\x90\x90\xc0"):
                stream = client.generate(PROMPT, ENDLESS)
                await anext(stream)
                context = zmq.Context()
                socket = context.socket(zmq.PUSH)
                link = client.replicas[0]._link
                assert link is not None
                socket.connect(f"ipc://{link._folder}/{REPORTS}")
                socket.send(report)
                with pytest.raises(EngineDeadError):
                    async for _ in stream:
                        pass
                context.destroy(linger=0)
                await recovers(client)

    asyncio.run(main())


def test_one_that_cannot_be_started_is_tried_again(models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the way, such as a machine without memory for a process, may be gone the next time."""
    troubles = [OSError("no memory for a process"), RuntimeError("nor for a thread")]

    def link(*arguments: Any) -> EngineLink:
        if troubles:
            raise troubles.pop()
        return EngineLink(*arguments)

    async def main() -> None:
        async with started(models["float32"].target) as client:
            monkeypatch.setattr(client_module, "EngineLink", link)
            os.kill(client.pid or 0, signal.SIGKILL)
            await until(lambda: client.state == "restarting")
            await recovers(client)
            assert not troubles
            assert client.restarts == 3

    asyncio.run(main())
