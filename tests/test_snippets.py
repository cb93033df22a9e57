"""What the README and the documents show works: Python runs, commands run or are accepted, files are read.

Commands that need a real model run in `make clients` (`tests/clients/test_documents.py`).
"""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from checkpoints import write_llama
from serving import Live, engine_of

from parlay.checkpoints import short_names as names
from parlay.cli.flags import Parser
from parlay.cli.main import main

ROOT = Path(__file__).parents[1]
# Reports are records: their commands are those of their time.
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reports"),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(parlay [a-z]+ [^`]*)`")  # with an argument; else it is a name
# Commands that end by themselves with what is embedded are run; the others fetch, serve, train or measure.
RUN = ("parlay generate", "parlay list")
# Documented sources that are put in their places by tests of their own.
PLACED = ("adding-a-proposer.md", "adding-a-family.md")


class Snippet(NamedTuple):
    """One block of a document, or one line of it."""

    document: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text.strip().splitlines()[0][:50]}"


def snippets(language: str) -> Iterator[Snippet]:
    for document in DOCUMENTS:
        for found, text in BLOCK.findall(document.read_text("utf-8")):
            if found == language:
                yield Snippet(document.name, text)


def blocks(program: str) -> Iterator[Snippet]:
    """Yield the lines of unmarked blocks that call a program, without comments, joined where they go on."""
    for document, text in snippets(""):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if re.match(rf"([A-Z_]+=\S+ )?{program} ", line) else []
            if words:
                yield Snippet(document, shlex.join(words))


def commands() -> Iterator[Snippet]:
    """Yield the commands of blocks, and whole ones of texts and tables; each once."""
    whole = (
        Snippet(document.name, " ".join(text.split()))
        for document in DOCUMENTS
        for text in INLINE.findall(document.read_text("utf-8"))
        if not re.search(r"--help|\[|\.\.\.", text)  # which are forms of a command
    )
    yield from {snippet.text: snippet for snippet in (*blocks("parlay"), *whole)}.values()


PYTHON = [s for s in snippets("python") if s.document not in PLACED]


@contextmanager
def served(folder: Path) -> Iterator[Live]:
    """Serve a chat model under the name that the README's client asks for."""
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    model = write_llama(folder / "target", seed=3, max_position_embeddings=2048, template=template)
    options = {"served_model_name": "smollm2", "speculative_config": {"method": "ngram"}}
    with engine_of(model, **options) as engine, Live(engine) as live:
        yield live


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("snippet", PYTHON, ids=str)
def test_python_runs(snippet: Snippet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "127.0.0.1:8000" not in snippet.text:
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(snippet.text, snippet.document, "exec"), scope)
        if hasattr(scope.get("llm"), "close"):
            scope["llm"].close()
        return
    with served(tmp_path) as live:
        exec(compile(snippet.text.replace("http://127.0.0.1:8000", live.url), snippet.document, "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("snippet", list(commands()), ids=str)
def test_commands_are_accepted(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(snippet.text)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    (settings,) = snippets("yaml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parlay.yaml").write_text(settings.text)
    made = "my-head" in snippet.text or "echo" in snippet.text  # by the lines before, which are not run
    runs = snippet.text.startswith(RUN) and not made
    short = ["--max-tokens", "8"] if words[1] == "generate" else []
    if not runs:
        parse = Parser.parse_args

        def accept(self: Parser, *of: Any) -> Any:
            options = parse(self, *of)
            options.run = lambda _: 0
            return options

        monkeypatch.setattr(Parser, "parse_args", accept)
    assert main(words[1:] + short) == 0, capsys.readouterr().err


@pytest.mark.parametrize("snippet", list(blocks("make")), ids=str)
def test_make_has_its_targets(snippet: Snippet) -> None:
    subprocess.run([*shlex.split(snippet.text), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("snippet", list(blocks("pip")), ids=str)
def test_extras_exist(snippet: Snippet) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *how, what = shlex.split(snippet.text)[2:]
    if "-c" in how:
        assert (ROOT / how[how.index("-c") + 1]).is_file()
    name, extras = re.fullmatch(r"(.+?)\[([\w,]+)\]", what).groups()
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    if name != ".":
        assert name.startswith(f"parlay-{project['version']}-")


@pytest.mark.parametrize("snippet", list(snippets("toml")), ids=str)
def test_tables_of_names_are_read(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.toml").write_text(snippet.text)
    monkeypatch.setattr(names.env, "config_dir", lambda: tmp_path)
    assert {"llama3.2", "mine:small", "mine:local"} <= set(names.short_names())


def test_every_kind_of_block_is_looked_at() -> None:
    kinds = {found for document in DOCUMENTS for found, _ in BLOCK.findall(document.read_text("utf-8"))}
    assert kinds == {"", "python", "yaml", "toml"}
    assert len(PYTHON) >= 3
    assert len(list(commands())) > 20


def test_files_and_metrics_that_documents_name_exist() -> None:
    places = (ROOT, ROOT / "src" / "parlay", ROOT / "src" / "parlay" / "proposers")
    source = ROOT / "src" / "parlay"
    metrics = "".join((source / name).read_text("utf-8") for name in ("metrics.py", "server/metrics.py"))
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        for path in re.findall(r"`((?:\w+/)+\w+\.(?:py|h|cpp|json|toml|sh))`", text):
            made = Path(path).name in ("echo.py", "smoothlm.py")  # by the reader
            assert made or any((place / path).exists() for place in places), f"{document.name} names {path}"
        for name in re.findall(r"`((?:vllm|parlay):[a-z_]+[a-z])`", text):
            assert name.removesuffix("_total") in metrics, f"{document.name} names {name}"
