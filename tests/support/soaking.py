"""Many clients for a long time: distinct requests whose answers are known, aborts, bad requests and kills."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from hostile import BODIES, COMPLETIONS, request
from server_process import ServerProcess, descriptors, resident

from parlay import LLM, SamplingParams

PATIENCE = 120.0  # seconds after which a request counts as hung
BAD, ABORTED, WHOLE = 0.05, 0.1, 0.2  # shares
_LARGE = 1 << 20  # bytes: what larger bodies do is another test
Answer = list[tuple[list[int], str, str | None]]  # of each choice: tokens, text, why it ended


@dataclass(frozen=True)
class Case:
    """A request and the only right answer to it."""

    body: dict[str, Any]
    answer: Answer


def make_cases(model: str, count: int, rng: Random) -> list[Case]:
    """Return requests with the answers of plain decoding, one engine and no server involved."""
    bodies = [_body(rng, seed) for seed in range(count)]
    llm = LLM(model, num_blocks=2048, speculative_config=None)
    prompts = [body["prompt"] for body in bodies]
    params = [SamplingParams(**{k: v for k, v in body.items() if k != "prompt"}) for body in bodies]
    outputs = llm.generate(prompts, params)
    return [
        Case(body, [(list(o.token_ids), o.text, o.finish_reason) for o in output.outputs])
        for body, output in zip(bodies, outputs, strict=True)
    ]


def _body(rng: Random, seed: int) -> dict[str, Any]:
    motif = [rng.randrange(32, 120) for _ in range(rng.randint(2, 12))]
    body: dict[str, Any] = {
        "prompt": (motif * 20)[: rng.randint(1, 120)],
        "seed": seed,
        "max_tokens": rng.randint(1, 160),
        "temperature": rng.choice([0, 0.3, 0.8, 1.0]),
        "top_p": rng.choice([1.0, 1.0, 0.9]),
        "ignore_eos": rng.random() < 0.5,
        "n": rng.choice([1, 1, 1, 2, 3]),
    }
    more = rng.random()
    if more < 0.2:
        body["stop"] = [chr(rng.randrange(97, 123)), "xyz"]
    elif more < 0.4:
        forms: list[dict[str, Any]] = [
            {"regex": "[a-f]{3,30}"},
            {"choice": ["yes", "no", "perhaps"]},
            {"json": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}},
        ]
        body |= {"structured_outputs": rng.choice(forms), "ignore_eos": False}
    elif more < 0.5:
        body["repetition_penalty"] = 1.2
    elif more < 0.6:
        body["speculative"] = {"enabled": False}
    return body


@dataclass
class Figures:
    """What came of it.

    Attributes:
        ends: how many requests ended how.
        wrong: what should not have happened.
        first: seconds until the first event of streams.
        gaps: the longest time between two events of each complete stream, in seconds.
        restarts: seconds until the server was ready again.
        memory: seconds since the start, and MiB of the front and of the engine.
    """

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    memory: list[tuple[float, float, float]] = field(default_factory=list)
    descriptors: list[tuple[int, int]] = field(default_factory=list)

    def table(self) -> str:
        """Return it for people, as Markdown."""
        ends, (_, front, engine), (_, front_end, engine_end) = self.ends, self.memory[0], self.memory[-1]
        (fds, engine_fds), (fds_end, engine_fds_end) = self.descriptors[0], self.descriptors[-1]
        rows = {
            "requests": sum(ends.values()),
            "complete and equal to plain decoding": ends["complete"],
            "left by their client": ends["aborted"],
            "bad, refused with 4xx": ends["bad"],
            "refused with 429 or 503": ends["refused"],
            "failed by a kill, with a clear error": ends["failed"],
            "anything else": len(self.wrong),
            "first event, p50 / p99": f"{_percentile(self.first, 50):.3f} / {_percentile(self.first, 99):.3f} s",
            "largest gap in a stream, p50 / most": f"{_percentile(self.gaps, 50):.3f} / {max(self.gaps):.3f} s",
            "ready again after a kill": ", ".join(f"{s:.1f} s" for s in self.restarts),
            "front: memory, start / end": f"{front:.0f} / {front_end:.0f} MiB",
            "engine: memory, start / end": f"{engine:.0f} / {engine_end:.0f} MiB",
            "front: descriptors, start / end": f"{fds} / {fds_end}",
            "engine: descriptors, start / end": f"{engine_fds} / {engine_fds_end}",
        }
        lines = [f"| {name} | {value} |" for name, value in rows.items()]
        middle = [f"{t:.0f} s: {a:.0f} + {b:.0f}" for t, a, b in self.memory[:: max(1, len(self.memory) // 10)]]
        return "\n".join(["| figure | value |", "|---|---|", *lines, "", "MiB over time: " + ", ".join(middle)])


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Soak:
    """Clients of one server."""

    def __init__(self, server: ServerProcess, cases: list[Case], rng: Random) -> None:
        """Take note."""
        self.server, self.cases, self.rng = server, cases, rng
        self.figures = Figures()
        bad = [(path, make()) for path, make, expected in BODIES.values() if min(expected) >= 400]
        self._bad = [(path, body) for path, body in bad if len(body) < _LARGE]

    async def run(self, clients: int, seconds: float, kills: int) -> Figures:
        """Ask for `seconds`; kill the engine at random times meanwhile."""
        began = time.monotonic()
        end = began + seconds
        self._measure(began)
        moments = sorted(began + seconds * self.rng.uniform(0.15, 0.8) for _ in range(kills))
        tasks = [asyncio.create_task(self._client(end, Random(self.rng.random()))) for _ in range(clients)]
        watch = asyncio.create_task(self._watch(began))
        for moment in moments:
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            await self._kill()
        await asyncio.gather(*tasks)
        watch.cancel()
        await self._until(self._idle)
        self._measure(began)
        return self.figures

    # ----------------------------------------------------------------------------------------------- the server

    def _measure(self, began: float) -> None:
        front, engine = self.server.pid, self.server.engine
        if engine is not None:
            with suppress(OSError):  # it was killed just now
                memory = (time.monotonic() - began, resident(front), resident(engine))
                self.figures.descriptors.append((descriptors(front), descriptors(engine)))
                self.figures.memory.append(memory)

    async def _watch(self, began: float) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._measure(began)

    def _idle(self) -> bool:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return all(self.server.figure(name) == 0 for name in names)

    async def _kill(self) -> None:
        await self._until(lambda: self.server.engine is not None)
        engine = self.server.engine
        began = time.monotonic()
        os.kill(engine or 0, signal.SIGKILL)
        await self._until(lambda: self.server.engine not in (engine, None))
        await self._until(lambda: self.server.ready())
        self.figures.restarts.append(time.monotonic() - began)

    async def _until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(true):
            assert time.monotonic() < end, "waited in vain"
            await asyncio.sleep(0.05)

    # ----------------------------------------------------------------------------------------------- one client

    async def _client(self, end: float, rng: Random) -> None:
        while time.monotonic() < end:
            what = rng.random()
            try:
                async with asyncio.timeout(PATIENCE):
                    if what < BAD:
                        how = await self._ask_badly(rng)
                    elif what < BAD + ABORTED:
                        how = await self._leave(rng)
                    else:
                        how = await self._ask(rng)
            except TimeoutError:
                how = ""
                self.figures.wrong.append("a request hung")
            except OSError as error:
                how = ""
                self.figures.wrong.append(f"the connection broke: {error!r}")
            self.figures.ends[how or "wrong"] += 1
            if how in ("refused", "failed"):
                await asyncio.sleep(rng.uniform(0.2, 1.0))

    async def _ask_badly(self, rng: Random) -> str:
        path, body = rng.choice(self._bad)
        head, content, _ = await self._exchange(body, path)
        return self._refusal(head, content) or self._complain("a bad request", head, content)

    async def _leave(self, rng: Random) -> str:
        case = rng.choice(self.cases)
        body = json.dumps({**case.body, "stream": rng.random() < 0.7, "max_tokens": 200, "ignore_eos": True})
        if "structured_outputs" in case.body:
            body = json.dumps({**case.body, "stream": True})
        reader, writer = await self._send(body.encode())
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.expovariate(1.0)):
                await reader.read(rng.randint(1, 2000))
        writer.close()
        return "aborted"

    async def _ask(self, rng: Random) -> str:
        case, whole = rng.choice(self.cases), rng.random() < WHOLE
        body = json.dumps({**case.body, "stream": not whole, "return_token_ids": True}).encode()
        began = time.monotonic()
        head, content, times = await self._exchange(body)
        if not head.startswith(b"HTTP/1.1 200"):
            return self._refusal(head, content) or self._complain("a request", head, content)
        chunks = [json.loads(content)] if whole else _events(content)
        if chunks and "error" in chunks[-1]:
            code = chunks[-1]["error"]["code"]
            return "failed" if code == "engine_not_ready" else self._complain("a stream", head, content)
        if not whole and not content.endswith(b"data: [DONE]\n\n"):
            return self._complain("a stream without an end", head, content)
        if _joined(chunks, len(case.answer)) != case.answer:
            return self._complain(f"a wrong answer to {case.body}", head, content)
        if not whole:
            self.figures.first.append(times[0] - began)
            self.figures.gaps.append(max((b - a for a, b in pairwise(times)), default=0.0))
        return "complete"

    async def _send(self, body: bytes, path: str = COMPLETIONS) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        # To a client of the older protocol an answer comes as it is, and its end is the connection's.
        writer.write(request(body, path=path).replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1))
        await writer.drain()
        return reader, writer

    async def _exchange(self, body: bytes, path: str = COMPLETIONS) -> tuple[bytes, bytes, list[float]]:
        """Return an answer's head and body, and when parts of the body came."""
        reader, writer = await self._send(body, path)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            parts, times = [], []
            while part := await reader.read(1 << 16):
                parts.append(part)
                times.append(time.monotonic())
            return head, b"".join(parts), times
        except asyncio.IncompleteReadError as error:
            return error.partial, b"", []
        finally:
            writer.close()

    def _refusal(self, head: bytes, content: bytes) -> str:
        """Return what kind of refusal an answer is; nothing if it is none that one would want."""
        code = int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0
        clear = content.startswith(b'{"error":{"message":"')
        if clear and 400 <= code < 429:
            return "bad"
        if clear and code in (429, 503) and b"retry-after" in head.lower():
            return "failed" if b"the engine died" in content else "refused"
        return ""

    def _complain(self, what: str, head: bytes, content: bytes) -> str:
        self.figures.wrong.append(f"{what}: {head[:200]!r} {content[-600:]!r}")
        return ""


def _events(content: bytes) -> list[Any]:
    lines = content.split(b"\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def _joined(chunks: list[Any], count: int) -> Answer:
    answer: Answer = [([], "", None)] * count
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        tokens, text, _ = answer[choice["index"]]
        answer[choice["index"]] = ([*tokens, *choice["token_ids"]], text + choice["text"], choice["finish_reason"])
    return answer
