"""The overhead of HTTP: the same prompts by `LLM` and by a server on this machine, in turns.

The server runs in separate processes, as it does for users, and shares the machine with the client that measures. The
client only writes bytes and looks for the ends of events: its own cost counts against the server.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Any

from parlay.bench.options import HttpOptions
from parlay.bench.serving import workload
from parlay.errors import ParlayError, brief
from parlay.llm import LLM
from parlay.types.params import SamplingParams


def measure(
    engine: Mapping[str, Any],
    speculative: str | None,
    options: HttpOptions,
    tick: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return one row a way: `LLM`, HTTP without streaming, HTTP with it.

    Args:
        engine: options of the engines; by default they cache no prefixes.
        speculative: how both speculate, as JSON, if at all.
        options: the workload.
        tick: called with a label before every turn.

    Raises:
        ConfigError: prompts and completions do not fit into the model's context.
        ParlayError: the server does not start, or refuses a request.
    """
    engine = {
        "use_tqdm_on_load": False,
        "enable_prefix_caching": False,
        "max_num_seqs": options.num_prompts,
        **engine,
    }
    llm = LLM(**engine, speculative_config=speculative)
    codec = llm.engine.codec
    work = [
        ([codec.decode(prompt) for prompt in prompts], params)
        for prompts, params in workload(codec, options, llm.engine.max_model_len)
    ]
    with _server(engine, speculative) as (port, pid):
        rounds = [_round(llm, port, pid, prompts, params, options.num_first, tick) for prompts, params in work][
            options.num_iters_warmup :
        ]
    return [_row(way, rounds, options, llm.numerics_id) for way in ("LLM", "whole", "stream")]


def _round(
    llm: LLM,
    port: int,
    pid: int,
    prompts: Sequence[str],
    params: Sequence[SamplingParams],
    firsts: int,
    tick: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Return what every way did with the same prompts."""
    tick("LLM")
    began = perf_counter()
    outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    row: dict[str, dict[str, Any]] = {
        "LLM": {"seconds": perf_counter() - began, "texts": [o.outputs[0].text for o in outputs], "first": []}
    }
    for way in ("whole", "stream"):
        tick(way)
        bodies = [_body(p, one, stream=way == "stream") for p, one in zip(prompts, params, strict=True)]
        before, began = _cpu_seconds(pid), perf_counter()
        answers = asyncio.run(_ask_all(port, bodies))
        seconds, after = perf_counter() - began, _cpu_seconds(pid)
        row[way] = {
            "seconds": seconds,
            "front": None if before is None or after is None else after - before,
            "texts": [_text(answer) for answer, _ in answers],
            "events": sum(answer.count(b"\ndata: {") for answer, _ in answers),
            "first": [],
        }
    tick("first tokens")
    for prompt, one in list(zip(prompts, params, strict=True))[:firsts]:
        short = replace(one, max_tokens=1)
        began = perf_counter()
        llm.generate(prompt, short, use_tqdm=False)
        row["LLM"]["first"].append(perf_counter() - began)
        request = _body(prompt, short, stream=True)
        began = perf_counter()
        ((_, first),) = asyncio.run(_ask_all(port, [request]))
        row["stream"]["first"].append(first - began)
    return row


def _row(way: str, rounds: Sequence[Mapping[str, Any]], options: HttpOptions, numerics: str) -> dict[str, Any]:
    offline, own = [r["LLM"] for r in rounds], [r[way] for r in rounds]
    tokens = options.num_prompts * options.output_len
    firsts = [seconds for one in own for seconds in one["first"]]
    events = median(one.get("events", 0) for one in own)
    row = {
        "way": way,
        "tokens_per_s": median(tokens / one["seconds"] for one in own),
        "cost": median(one["seconds"] / base["seconds"] for one, base in zip(own, offline, strict=True)) - 1,
        "first_token_ms": 1e3 * median(firsts) if firsts else None,
        "us_per_event": None,
        "front_ms_per_request": None,
        "events": events or None,
        "same_text": all(one["texts"] == base["texts"] for one, base in zip(own, offline, strict=True)),
        "seconds": [one["seconds"] for one in own],
        "numerics": numerics,
    }
    if way != "LLM" and own[0]["front"] is not None:
        row["front_ms_per_request"] = 1e3 * median(one["front"] for one in own) / options.num_prompts
        if events:
            more = median(r["stream"]["front"] - r["whole"]["front"] for r in rounds)
            row["us_per_event"] = 1e6 * more / events
    return row


# ---------------------------------------------------------------------------------------------------- the server


@contextmanager
def _server(engine: Mapping[str, Any], speculative: str | None) -> Iterator[tuple[int, int]]:
    """Run a server; gives its port and its process id."""
    command = [
        sys.executable,
        "-m",
        "parlay.cli.main",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        *_flags(engine),
    ]
    if speculative is not None:
        command += ["--speculative-config", speculative]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    log = _Log(process)
    try:
        yield log.port(), process.pid
    finally:
        process.terminate()
        process.wait()


def _flags(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif value is not None:
            yield f"--{flag}"
            yield value if isinstance(value, str) else json.dumps(value)


class _Log:
    """What a server writes: read all the time, since a full pipe would stop it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._lines: list[str] = []
        self._port: Future[int] = Future()
        Thread(target=self._read, args=(process,), daemon=True).start()

    def port(self) -> int:
        """Wait until the server listens.

        Raises:
            ParlayError: it ended instead.
        """
        return self._port.result()

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").strip()
                if not self._port.done():
                    self._lines.append(text)
                    if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", text):
                        self._port.set_result(int(found[1]))
        if not self._port.done():
            why = self._lines[-1] if self._lines else "it wrote nothing"
            self._port.set_exception(ParlayError(f"the server did not start: {brief(why)}"))


def _cpu_seconds(pid: int) -> float | None:
    """Return the time that a process has computed; None where the system does not tell (proc(5), stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------------------------------------- the client


def _body(prompt: str, params: SamplingParams, *, stream: bool) -> bytes:
    fields = {
        "prompt": prompt,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seed": params.seed,
        "ignore_eos": params.ignore_eos,
        "stream": stream,
    }
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _ask_all(port: int, requests: Sequence[bytes]) -> list[tuple[bytes, float]]:
    """Send all at once; return answers and when each began, as `perf_counter` has it."""
    return await asyncio.gather(*(_ask(port, request) for request in requests))


async def _ask(port: int, request: bytes) -> tuple[bytes, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    parts, first = [], inf
    while part := await reader.read(1 << 16):
        parts.append(part)
        if first == inf and b"data: {" in part:
            first = perf_counter()
    writer.close()
    answer = b"".join(parts)
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ParlayError(f"the server refused a request: {brief(answer.decode(errors='replace'))}")
    return answer, first


def _text(answer: bytes) -> str:
    """Return the completion that an answer brought, whole or in events."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"text/event-stream" not in head:
        return str(json.loads(body)["choices"][0]["text"])
    events = re.findall(rb"data: (\{.*\})\n", body)
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)
