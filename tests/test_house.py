"""Rules of the house that no linter knows."""

import ast
import gc
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import parlay
from parlay.config import EngineConfig, ServerConfig, SpeculativeConfig
from parlay.engine.request import Request
from parlay.proposers.select import proposers
from parlay.text.chat import ChatOptions
from parlay.train.options import TrainOptions
from parlay.train.trainee import methods
from parlay.types.cache import CacheSpec
from parlay.types.draft import Draft
from parlay.types.plan import CatchUp, ProposerState, Span, TokenLogprobs, Verdict
from parlay.types.stats import DraftStats, Stats

SOURCE = Path(parlay.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
CONFIGS = [
    EngineConfig,
    ServerConfig,
    SpeculativeConfig,
    ChatOptions,
    parlay.SamplingParams,
    parlay.SpeculationOverride,
    parlay.StructuredOutputsParams,
    parlay.RequestMetrics,
    parlay.CompletionOutput,
    *(proposers.load(name).Options for name in proposers.names()),
    *(TrainOptions, *(methods.load(name).Options for name in methods.names())),
    *(CacheSpec, CatchUp, Draft, DraftStats, Stats, ProposerState, Span, TokenLogprobs, Verdict),
]

LONGEST_FUNCTION = 60  # lines
PLUG_INS = {"Model", "Options", "Proposer", "Trainee"}
PLUG_IN_FOLDERS = "models/families/", "proposers/methods/"
# Still to be mended.
COMMON_NAMES = {"Costs", "Step"}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@pytest.fixture(scope="module", autouse=True)
def _trees_for_this_file() -> Iterator[None]:
    """They are millions of objects, among which there is no garbage, and which later tests do not need."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def trees(files: list[Path] = FILES) -> Iterator[tuple[str, ast.Module]]:
    for file in files:
        yield str(file.relative_to(SOURCE)), tree_of(file)


def test_the_public_surface() -> None:
    exported = {
        name for name, value in vars(parlay).items() if getattr(value, "__module__", "").startswith("parlay.")
    }
    assert exported | {"AsyncLLM", "LLM", "__version__"} == set(parlay.__all__)
    assert len(parlay.__all__) == len(set(parlay.__all__))
    assert all(hasattr(parlay, name) for name in parlay.__all__)
    assert set(parlay.__all__) <= set(dir(parlay))
    with pytest.raises(AttributeError, match="LMM"):
        _ = parlay.LMM


def test_importing_is_cheap() -> None:
    heavy = "torch", "transformers", "numpy", "tokenizers", "rich", "llguidance", "safetensors", "starlette"
    code = f"import sys, parlay; print(*set({heavy!r}) & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_the_servers_front_does_without_torch() -> None:
    """It is a process of its own, which would take three times the memory."""
    modules = "parlay.server.app, parlay.server.remote.client, parlay.server.metrics, parlay.text.tokenizer"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]


def test_an_engine_does_not_need_transformers(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent / 'support')!r});"
        "from pathlib import Path; from checkpoints import write_llama; from parlay import LLM, SamplingParams;"
        f"llm = LLM(str(write_llama(Path({str(tmp_path)!r}))), speculative_config={{'method': 'ngram'}});"
        "llm.generate('hello', SamplingParams(max_tokens=4));"
        "assert 'transformers' not in sys.modules; print('fine')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout == "fine\n", ran.stderr


def test_only_env_reads_the_environment() -> None:
    for name, tree in trees():
        if name == "env.py":
            continue
        for node in ast.walk(tree):
            used = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert used not in {"environ", "getenv", "putenv"}, f"{name}:{node.lineno} reads the environment"


def test_no_files_import_each_other() -> None:
    metrics = runpy.run_path(str(SOURCE.parents[1] / "scripts" / "metrics.py"))
    assert metrics["largest_circle"](SOURCE.parent, FILES, [tree_of(file) for file in FILES]) == 0


def test_functions_are_short() -> None:
    """At most 60 lines, docstring included."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= LONGEST_FUNCTION
    ]
    assert not found


def test_entries_of_docstrings_stand_alone() -> None:
    """ "rows: of the batch" has to be read with its name; an entry starts with a noun."""
    found = []
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                text = ast.get_docstring(node) or ""
                entries = re.findall(r"^    ([\w, ]+): (?:of|that|likewise)\b", text, flags=re.MULTILINE)
                found += [f"{name}: {entry}" for entry in entries]
    assert not found


def test_no_test_file_has_the_name_of_another() -> None:
    """Folders of tests are no packages, so that pytest would take one for the other."""
    names = [file.name for file in Path(__file__).parent.rglob("test_*.py") if "node_modules" not in file.parts]
    assert len(names) == len(set(names))


def test_no_class_has_the_name_of_another() -> None:
    """But for those by which plug-ins are found: each family file has a `Model`, each method a `Proposer`."""
    named: dict[str, list[str]] = {}
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not (node.name in PLUG_INS and file.startswith(PLUG_IN_FOLDERS)):
                named.setdefault(node.name, []).append(file)
    assert not {name: files for name, files in named.items() if len(files) > 1 and name not in COMMON_NAMES}


def test_nobody_asks_for_a_proposers_name() -> None:
    """Only its own file may compare with it; everything else goes by what it declares."""
    names = set(proposers.names()) - {"none"}
    for file, tree in trees():
        if file.startswith("proposers/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare | ast.MatchValue):
                constants = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                asked = {c for c in constants if isinstance(c, str)} & names
                assert not asked, f"{file}:{node.lineno} asks for {asked}"


def fields_of(cls: type) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    assert is_dataclass(cls)
    return tuple(field.name for field in fields(cls))


def frozen(cls: Any) -> bool:
    if issubclass(cls, msgspec.Struct):
        return bool(cls.__struct_config__.frozen)
    return bool(cls.__dataclass_params__.frozen)


@pytest.mark.parametrize("cls", CONFIGS, ids=lambda c: f"{c.__module__.rpartition('.')[2]}.{c.__name__}")
def test_every_field_has_its_line(cls: type) -> None:
    own = set(fields_of(cls))
    document = "\n".join(inspect.getdoc(part) or "" for part in cls.__mro__ if part.__module__.startswith("parlay"))
    described = {
        name for line in re.findall(r"^ +([\w, ]+):", document, flags=re.MULTILINE) for name in line.split(", ")
    }
    assert not own - described
    gone = described - own - {"ConfigError", "RequestError"}
    assert not gone, "described, but no longer there"


def test_every_environment_variable_is_described() -> None:
    text = (SOURCE / "env.py").read_text()
    document = ast.get_docstring(ast.parse(text)) or ""
    read = set(re.findall(r'"(PARLAY_\w+)"', text))
    assert read
    assert read == set(re.findall(r"^ *(PARLAY_\w+) ", document, flags=re.MULTILINE))


def test_identities_do_not_change() -> None:
    """What describes a request or a step is frozen, apart from the request's own progress.

    A user may change sampling parameters, as in vLLM; the engine takes a copy.
    """
    for cls in (*CONFIGS, parlay.RequestOutput):
        if cls not in (DraftStats, Stats, parlay.SamplingParams):
            assert frozen(cls), cls
    assert not Request.__dataclass_params__.eq


def test_planted_faults_can_be_planted() -> None:
    """The lines that they replace are there, each once."""
    tree = Path(__file__).parents[1]
    for fault in runpy.run_path(str(tree / "scripts" / "plant_faults.py"))["FAULTS"]:
        assert (tree / fault.file).read_text().count(fault.old) == 1, fault.name
