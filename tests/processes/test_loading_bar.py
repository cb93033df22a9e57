"""A bar on a terminal while a model is loaded, and none elsewhere."""

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import ranks
from checkpoints import write_llama
from server_process import START_SECONDS
from serving import wait_for

from parlay import LLM
from parlay.loading_bar import loading_bar
from parlay.types.progress import Progress

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_ranks")]

ERASE, SHOW_CURSOR = "\x1b[2K", "\x1b[?25h"
PLAIN = ("--speculative-config", "none", "--num-blocks", "64")


class Terminal:
    """One side is a terminal of 100 columns, the other is read into `text`."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # nobody has the other side open
                return
            self.text += data.decode()

    def close(self) -> str:
        """Return all that was written, once nobody has the terminal open but this."""
        os.close(self.theirs)
        self._reader.join(START_SECONDS)
        os.close(self._ours)
        return self.text


def on_terminal(command: Sequence[str], **environment: str) -> tuple[int, str, str]:
    """Return a command's status, what it wrote to stdout, and what the terminal got that was its stderr."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
    side = Terminal()
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=side.theirs, env=environment, text=True)
    return ran.returncode, ran.stdout, side.close()


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("bar") / "bar-model", scale=2.0)


def generate(model: Path, *more: str) -> list[str]:
    return [*ranks.COMMAND, "generate", "abc", "--model", str(model), "--max-tokens", "4", *PLAIN, *more]


def test_generate_shows_a_bar_that_is_gone_before_the_summary(model: Path) -> None:
    status, out, shown = on_terminal(generate(model))
    assert status == 0
    assert out
    assert "loading bar-model" in bare(shown)
    size = re.search(r"(\d+ kB) of (\d+ kB)", bare(shown))
    assert size is not None
    loading, _, after = shown.rpartition(ERASE)
    assert "loading bar-model" in bare(loading)
    assert "loading" not in bare(after)
    assert "tokens/s" in bare(after)
    assert shown.count(SHOW_CURSOR) == 1


def test_the_option_that_turns_it_off(model: Path) -> None:
    status, _, shown = on_terminal(generate(model, "--no-use-tqdm-on-load"))
    assert status == 0
    assert "loading" not in bare(shown)
    assert "tokens/s" in bare(shown)


def test_llm_shows_it_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    side = Terminal()
    with os.fdopen(os.dup(side.theirs), "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        LLM(str(model), speculative_config=None, num_blocks=64)
        print("now without", file=stderr, flush=True)
        LLM(str(model), speculative_config=None, num_blocks=64, use_tqdm_on_load=False)
    loading, _, after = side.close().partition("now without")
    assert "loading bar-model" in bare(loading)
    assert after.strip() == ""


def test_a_pipe_gets_none(model: Path) -> None:
    ran = subprocess.run(
        generate(model), capture_output=True, text=True, env={**os.environ, "FORCE_COLOR": "1"}, check=True
    )
    assert "loading" not in ran.stderr
    assert "tokens/s" in bare(ran.stderr)


def test_nothing_is_left_where_loading_fails(model: Path, tmp_path: Path) -> None:
    broken = write_llama(tmp_path / "broken", scale=2.0)
    data = bytearray((broken / "model.safetensors").read_bytes())
    data[-64:] = b"\xff" * 64
    (broken / "model.safetensors").write_bytes(data)
    status, _, shown = on_terminal(generate(broken))
    assert status
    loading, _, after = shown.rpartition(ERASE)
    assert "loading broken" in bare(loading)
    assert "loading" not in bare(after)
    assert "damaged" in bare(after)
    assert SHOW_CURSOR in shown


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("begin", ["loading x", None])
def test_nothing_is_left_after_an_interrupt(
    error: type[BaseException], begin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    side, tellers = Terminal(), []
    with os.fdopen(os.dup(side.theirs), "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)

        def load() -> None:
            with loading_bar(begin, show=True) as tell:
                tellers.append(tell)
                tell(Progress("x", 0, 10_000))
                tell(Progress("x", 5_000, 10_000))
                raise error

        with pytest.raises(error):
            load()
        tellers[0](Progress("x", 10_000, 10_000))  # of a process that has not heard of it
    shown = side.close()
    assert "loading x" in bare(shown)
    assert "5 kB of 10 kB" in bare(shown)
    assert shown.index("5 kB of 10 kB") < shown.rindex(ERASE)
    assert "x" not in bare(shown[shown.rindex(ERASE) :])
    assert "10 kB of 10 kB" not in bare(shown)
    assert SHOW_CURSOR in shown


def test_who_was_never_shown_is_not_shown_later(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Terminal()
    with os.fdopen(os.dup(side.theirs), "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with loading_bar(show=True) as tell:
            pass
        tell(Progress("x", 0, 10))
    assert side.close() == ""


def serve(model: Path, *more: str) -> str:
    """Return what a server says on a terminal until it listens."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "parlay.cli.main", "serve", str(model), "--port", "0", *PLAIN, *more]
    side = Terminal()
    process = subprocess.Popen(command, stderr=side.theirs, env=environment)
    try:
        wait_for(lambda: "listening on" in side.text or process.poll() is not None, START_SECONDS)
    finally:
        process.terminate()
        process.wait()
    return side.close()


def test_a_server_shows_what_its_engine_loads(model: Path) -> None:
    shown = serve(model)
    loading, _, after = shown.rpartition(ERASE)
    assert re.search(r"loading bar-model .* \d+ kB of \d+ kB", bare(loading))
    assert "listening on" in bare(after)
    assert "loading" not in bare(after)
    assert re.search(r"model +.*of weights", bare(after))


def test_a_log_of_json_has_no_bar(model: Path) -> None:
    shown = serve(model, "--log-format", "json")
    assert "\x1b" not in shown
    events = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    assert "ready" in [event.get("event") for event in events]
