"""Other engines side by side: workers, what they may do wrong, and what comes of their answers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peer_process, peers
from benchmarks.peer_process import Peer, PeerError, PeerWorker, installed
from benchmarks.peers import OURS
from parlay import LLM, SamplingParams

# Engines that are none, beside parlay's own.
FAKES = """
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("peer_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

class Fake(worker.PeerEngine):
    package = "pip"

    def __init__(self, model, method, threads, length, requests):
        print("chatter on the way")
        if method.get("lookup") == 1:
            raise OSError("this file is not for me")

    def generate(self, prompt, count, temperature, seed):
        return [len(prompt)] * count, 0.0

class Dying(Fake):
    def generate(self, prompt, count, temperature, seed):
        sys.stderr.write("I have had enough\\n")
        sys.stderr.flush()
        os._exit(3)

class Hanging(Fake):
    def generate(self, prompt, count, temperature, seed):
        time.sleep(600)

class Babbling(Fake):
    def generate(self, prompt, count, temperature, seed):
        os.write(OUT, b"no JSON\\n")
        time.sleep(600)

OUT = os.dup(1)
worker.ENGINES |= {"fake": Fake, "dying": Dying, "hanging": Hanging, "babbling": Babbling}
worker.main()
"""


SOURCE = f"WORKER = {str(peer_process.WORKER)!r}\n{FAKES}"


@pytest.fixture
def forked(tmp_path: Path, fakes: None, forked_ranks: tuple[str, ...]) -> None:
    """Workers are forked from a process which has torch imported."""
    command = [*forked_ranks, "code", SOURCE]
    (tmp_path / "fakes.py").write_text(f"import os\nos.execv({command[0]!r}, {command!r})\n")


@pytest.fixture(autouse=True)
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "fakes.py"
    script.write_text(SOURCE)
    monkeypatch.setattr(peer_process, "WORKER", script)
    monkeypatch.setattr(peers, "_PAUSE", 0.0)
    monkeypatch.setattr(peers, "_ANSWERING", 20.0)
    monkeypatch.setenv("PARLAY_THREADS", "1")
    own = peers.PEERS[0]
    others = [Peer(name, (), {}) for name in ("fake", "dying", "babbling")]
    others[0] = replace(others[0], methods={"lookup 1": {"lookup": 1}, "lookup 2": {"lookup": 2}})
    monkeypatch.setattr(peers, "PEERS", (own, *(replace(one, directories=True) for one in others)))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in ("def f(x):", "class A:\n", "import os\n"))
    )
    return path


@pytest.fixture
def small(prompts: Path) -> list[str]:
    sizes = ["--prefill", "8", "--temperatures", "0", "--max-tokens", "6", "--repetitions", "2"]
    return ["--model", "tiny=tiny-code", *sizes, "--max-model-len", "300", "--prompts", str(prompts)]


def measured(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert peers.main(flags) == 0
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


@pytest.fixture
def worker() -> Iterator[PeerWorker]:
    with PeerWorker(Path(sys.executable), 1) as made:
        yield made


@pytest.mark.usefixtures("forked")
def test_our_own_worker_does_what_the_library_does(worker: PeerWorker) -> None:
    worker.load(OURS, "tiny-code", {}, 64, 60)
    assert worker.passes
    prompt = list(b"def f(x):")
    found = worker.call(30, do="generate", prompt=prompt, count=8, temperature=0.8, seed=3)
    llm = LLM("tiny-code", max_model_len=64, speculative_config=None)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True)
    (expected,) = llm.generate([prompt], params, use_tqdm=False)
    assert found["tokens"] == list(expected.outputs[0].token_ids)
    assert 0 < found["first"] < found["seconds"]
    assert worker.call(30, do="steps", rows=4, context=8, repeats=3)["seconds"] > 0
    assert worker.call(30, do="memory")["bytes"] > 1 << 20
    scores = worker.call(30, do="score", tokens=prompt)["scores"]
    (reported,) = llm.generate([prompt], SamplingParams(prompt_logprobs=0, max_tokens=1), use_tqdm=False)
    assert reported.prompt_logprobs is not None
    later = list(zip(prompt, reported.prompt_logprobs, strict=True))[len(prompt) // 2 :]
    batch = [list(b"class A:"), list(b"import os")]
    worker.load(OURS, "tiny-code", {}, 64, 60, requests=2)
    assert worker.batches
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    side_by_side = worker.call(30, do="batch", prompts=batch, count=8)["texts"]
    assert side_by_side == [list(one.outputs[0].token_ids) for one in llm.generate(batch, greedy, use_tqdm=False)]
    assert scores == pytest.approx([-known[token].logprob for token, known in later if known], rel=1e-4)


def test_what_engines_print_is_no_answer(worker: PeerWorker) -> None:
    worker.load("fake", "tiny-code", {}, 64, 60)
    assert not worker.passes
    assert not worker.batches
    assert worker.call(30, do="generate", prompt=[1, 2], count=3, temperature=0, seed=0)["tokens"] == [2, 2, 2]


@pytest.mark.parametrize(
    ("engine", "limit", "words"),
    [
        ("dying", 30, "its process has ended: I have had enough"),
        ("hanging", 0.5, "no answer within 0 seconds"),
        ("babbling", 30, "its answer is not JSON: no JSON"),
    ],
)
def test_engines_that_do_not_answer(worker: PeerWorker, engine: str, limit: float, words: str) -> None:
    worker.load(engine, "tiny-code", {}, 64, 60)
    with pytest.raises(PeerError, match=words):
        worker.call(limit, do="generate", prompt=[1], count=3, temperature=0, seed=0)
    with pytest.raises(PeerError, match="its process has ended"):
        worker.call(5, do="memory")


def test_a_worker_survives_what_it_cannot_do(worker: PeerWorker) -> None:
    for what, words in (
        ({"do": "dance"}, "there is no call 'dance'"),
        ({"do": "memory", "now": True}, None),
        ({"do": "load", "engine": "fake"}, "TypeError"),
    ):
        if words is None:
            assert worker.call(30, **what)["bytes"]
        else:
            with pytest.raises(PeerError, match=words):
                worker.call(30, **what)


@pytest.mark.usefixtures("forked")
def test_a_comparison_goes_on_without_those_that_fail(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a file has is not measured again."""
    output = tmp_path / "peers.json"
    flags = [*small, "--rows", "1", "3", "--batch-sizes", "2", "--output", str(output)]
    result = measured(capsys, *flags)
    rows = result["rows"]
    assert list(dict.fromkeys(row["measured"] for row in rows)) == [
        *("prompt of 8", "step of 1, 256 before", "step of 3, 256 before"),
        *("some, plain", "some, plain, batch 2", "some, speculation, temperature 0"),
    ]
    assert result["missing"] == {"fake lookup 1 on tiny": "OSError: this file is not for me"}
    plain = {row["engine"]: row for row in rows if row["measured"] == "some, plain"}
    assert list(plain) == [OURS, "fake", "dying", "babbling"]
    assert "its process has ended" in plain["dying"]["error"]
    assert plain[OURS]["ratio"] == 1
    assert len(plain["fake"]["seconds"]) == 3
    assert plain["fake"]["first_difference"] == [0, 0, 0]
    assert plain[OURS]["first_difference"] == [None, None, None]
    assert 0 < plain["fake"]["ratio"] < 0.5  # it does nothing, which takes it no time
    assert plain["fake"]["interval"] is None, "three repetitions have none"
    speculating = [row["method"] for row in rows if "speculation" in row["measured"]]
    assert speculating == ["plain", "auto", "lookup 2"]
    steps = [row["engine"] for row in rows if row["measured"] == "step of 3, 256 before"]
    assert steps == [OURS]  # nobody else offers single passes
    [batch] = [row for row in rows if row["measured"] == "some, plain, batch 2"]  # nor several prompts
    assert (batch["engine"], len(batch["seconds"])) == (OURS, 2)
    assert batch["figure"] > 0
    assert len(json.loads(output.read_text())["rows"]) == len(rows)

    def start(*_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(PeerWorker, "__init__", start)
    assert measured(capsys, *flags)["rows"] == rows
    assert peers.main([*flags, "--prefixes", "2"]) == 2
    assert "was measured with prefixes None, here 2" in capsys.readouterr().err


def test_environments_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[str] = []
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if "venv" in command:
            (tmp_path / "all" / "pip" / "bin").mkdir(parents=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    with monkeypatch.context() as patch:
        patch.setattr(peer_process.subprocess, "run", run)
        there = Peer("tool", ("pip",), {}, without=("setuptools",))
        python = installed(there, tmp_path / "all", None, labels.append)
        assert installed(there, tmp_path / "all", None, labels.append) == python
    assert labels == ["installing pip, which may take a while"]
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    assert ran[1:] == [[*pip, "install", "pip"], [*pip, "uninstall", "--yes", "setuptools"]]


@pytest.mark.soak
def test_environments(tmp_path: Path) -> None:
    there = Peer("tool", ("pip",), {}, without=("setuptools",))  # every environment has pip
    python = installed(there, tmp_path / "all", None, lambda _: None)
    assert python.exists()
    has = [str(python), "-c", "import setuptools"]
    assert subprocess.run(has, capture_output=True, check=False).returncode == 1
    broken = Peer("broken", (str(tmp_path / "nothing.whl"),), {})
    with pytest.raises(PeerError, match=r"cannot be installed: .*nothing.whl"):
        installed(broken, tmp_path / "all", None, lambda _: None)


def test_mistakes_come_before_installing(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main(["--model", "tiny-code", "--prefill", "20", "--max-model-len", "260"]) == 2
    assert "a pass of 264 tokens has no room within --max-model-len 260" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        peers.main(["--model", "tiny-code", "--peers", "fak"])
