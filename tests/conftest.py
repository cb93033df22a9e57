"""Checkpoints and engines that many tests share."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported, by whomever

import asyncio
import atexit
import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ranks
import torch
from asking import Ask, assert_whole, random_seed, run
from checkpoints import write_llama
from families import write_family
from fitting import FITTED, fitted, fitting
from forked_ranks import forking
from hypothesis import HealthCheck, settings
from tagged_device import LONGEST, TaggedKernels

from parlay import LLM, CompletionOutput
from parlay.cli import serve
from parlay.engine import load, local_ranks, resolve, speculation
from parlay.garbage_collection import raise_threshold
from parlay.kernels import tuning
from parlay.kernels.base import Kernels
from parlay.kernels.select import instruction_sets, select_kernels
from parlay.numerics import digests
from parlay.proposers.base import HostProposer
from parlay.proposers.select import proposers

# Bytecode is kept whatever the shell says: the suite starts over a hundred processes, which would compile all anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples every time, and no deadline on a machine that may be busy. `make soak` has many, and others.
SOAK = "PARLAY_SOAK_SECONDS" in os.environ
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=40)
settings.register_profile(
    "soak", deadline=None, database=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("soak" if SOAK else "fixed")

# Tests run side by side, one process a core: engines compute in one thread each, in processes that tests start too.
# Tests that are about threads set their number themselves.
os.environ.setdefault("PARLAY_THREADS", "1")
torch.set_num_threads(1)

# Engines and tests make objects by the thousand, of which hardly any are garbage: a twentieth of the suite's time.
raise_threshold()

DTYPES = ("float32", "bfloat16")

pytest_plugins = ("hub_fixtures",)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a user's machine remembers must not alter the tests, nor they it; processes they start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_starts(_cache_of_its_own: None) -> Iterator[None]:
    """No start of an engine measures how far ahead to prefetch, nor in processes that tests start.

    Here it times passes of a few sizes, since hundreds of engines know nothing yet, and looks through the digests of
    a few files.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation, "timed_passes", partial(speculation.timed_passes, sizes=(1, 8, 2, 16)))
        patch.setattr(digests, "_FILES", 30)
        patch.setattr(tuning, "measure", lambda kernels: tuning.Prefetching())
        tuning.tune(select_kernels(), 1)
        yield


@pytest.fixture(autouse=True)
def _no_costs_from_other_tests() -> None:
    """What one test's engines have found out about methods must not decide what another's draft."""
    (Path(os.environ["XDG_CACHE_HOME"]) / "parlay" / "costs.json").unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Engines set the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _instructions() -> Iterator[None]:
    """Kernels choose the instruction set of the process; ranks that a later test starts would choose the best."""
    yield
    if instruction_sets():
        select_kernels()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import clients' libraries for tests that are not run."""
    return True if collection_path.name == "clients" and "not clients" in config.option.markexpr else None


def pytest_collection_finish() -> None:
    """Have no search for garbage look at what stays: a million objects of libraries and of collected tests."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # or nanobind reports leaks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have `make soak` run what hypothesis finds examples for, too."""
    for item in items if SOAK else ():
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.soak)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random requests were drawn with PARLAY_TEST_SEED={random_seed()}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test for three minutes at most: on the loop of its `house`, or one of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run = given["house"].run if "house" in given else asyncio.run
    run(asyncio.wait_for(pyfuncitem.obj(**given), 180))
    return True


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """With what `parlay serve` would have served, which it does not: options, speculation, the server's config."""
    calls: list[Any] = []

    async def note(*arguments: Any) -> None:
        calls.append(arguments)
        await asyncio.sleep(0)

    monkeypatch.setattr(serve, "_serve", note)
    return calls


@pytest.fixture(scope="session")
def _rank_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    with forking(tmp_path_factory.mktemp("ranks")) as command:
        yield command


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch, _rank_command: tuple[str, ...]) -> tuple[str, ...]:
    """With ranks that are forked from a process which has torch imported, for tests that start many.

    Returns the command of one; with `parlay` and arguments behind it, that command is forked; with `code` and
    Python's source, that is.
    """
    monkeypatch.setattr(local_ranks, "_COMMAND", _rank_command)
    monkeypatch.setattr(ranks, "COMMAND", (*_rank_command, "parlay"))
    return _rank_command


class Pair(NamedTuple):
    """A target and a draft model that agrees with it now and then."""

    target: Path
    draft: Path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Checkpoints by dtype: peaked targets that fall into loops, drafts that are the target with noise."""
    return write_pairs(tmp_path_factory)


def write_pairs(tmp_path_factory: pytest.TempPathFactory, **more: Any) -> dict[str, Pair]:
    pairs = {}
    for name in DTYPES:
        path, dtype = tmp_path_factory.mktemp(name), getattr(torch, name)
        shape = {"seed": 2, "dtype": dtype, "scale": 7.0, "calm": 0.2, **more}
        pairs[name] = Pair(write_llama(path / "target", **shape), write_llama(path / "draft", noise=0.06, **shape))
    return pairs


MakeLLM = Callable[..., LLM]


@pytest.fixture
def make_llm(models: dict[str, Pair]) -> Iterator[MakeLLM]:
    """A factory of engines on the shared target; `method` and `k` switch speculation on.

    When the test ends, every pool must be whole, and empty where nothing runs any more.
    """
    made: list[LLM] = []

    def make(method: str | None = None, k: int | None = None, *, dtype: str = "float32", **options: Any) -> LLM:
        speculative = options.pop("speculative_config", None)
        if method is not None:
            speculative = {"method": method, **proposer_options(method, models[dtype])}
            if k is not None and drafts(method):
                speculative["num_speculative_tokens"] = k
        # What a test counts must not depend on the clock.
        if isinstance(speculative, dict):
            speculative = {"lengths": "fixed", **speculative}
        elif isinstance(speculative, list) and not any(
            not isinstance(one, dict) or "lengths" in one for one in speculative
        ):
            speculative = [{"lengths": "fixed", **one} for one in speculative]
        options = {"model": str(models[dtype].target), "max_model_len": 128, "max_num_seqs": 16, **options}
        llm = LLM(speculative_config=speculative, **options)
        made.append(llm)
        return llm

    yield make
    for llm in made:
        llm.engine.close()
        assert_whole(llm.engine)


def drafts(method: str) -> bool:
    """Whether a proposer ever drafts."""
    return proposers.load(method).Proposer.default_length > 0


def check_accepted(method: str, accepted: int, possible: bool = True) -> None:
    """Check how many guesses were right, where these tests can know: on a random target's texts.

    A proposer that guesses from tokens alone may find nothing in them; what it does on a text that suits it is
    checked on its own `TEXT`.
    """
    if not drafts(method) or not possible:
        assert accepted == 0
    elif guesses_on_random_texts(method):
        assert accepted > 0


def guesses_on_random_texts(method: str) -> bool:
    """Whether a proposer is known to guess on a random target's texts."""
    on_host = issubclass(proposers.load(method).Proposer, HostProposer)
    return not on_host or getattr(fitting(method), "GUESSES_ON_RANDOM_TEXTS", False)


def proposer_options(method: str, pair: Pair) -> dict[str, Any]:
    """Return what a proposer cannot do without, or does little without on random texts."""
    if method in FITTED:
        return {"model": str(fitted(method, pair.target))}
    own = fitting(method)
    return own.options(pair) if hasattr(own, "options") else {}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints of families by name, each written once."""
    return cache(lambda name: write_family(tmp_path_factory.mktemp(name), name))


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, which no test may edit."""
    return write_llama(tmp_path_factory.mktemp("target"))


@pytest.fixture
def weightless(tmp_path: Path) -> str:
    """A target whose weights cannot be read: what is wrong with a head is said before anybody tries."""
    target = write_llama(tmp_path / "target")
    (target / "model.safetensors").write_bytes(b"nothing")
    return str(target)


Plain = Callable[..., list[CompletionOutput]]


@pytest.fixture(scope="session")
def plain(models: dict[str, Pair]) -> Plain:
    """What plain decoding gives: every request alone, its prompt whole, nothing cached. Computed once each."""
    return decoding_plainly(models)


def decoding_plainly(models: dict[str, Pair], **options: Any) -> Plain:
    given: dict[str, Any] = {"max_model_len": 128, "enable_prefix_caching": False, **options}
    engines: dict[str, LLM] = {}
    known: dict[tuple[str, Ask], list[CompletionOutput]] = {}

    def complete(dtype: str, asks: Sequence[Ask]) -> list[CompletionOutput]:
        if dtype not in engines:
            engines[dtype] = LLM(str(models[dtype].target), **given, speculative_config=None)
        for ask in asks:
            if (dtype, ask) not in known:
                known[dtype, ask] = run(engines[dtype], [ask])
        return [completion for ask in asks for completion in known[dtype, ask]]

    return complete


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options of an engine on a device that is the CPU under another name, see `tagged_device`."""

    def select(device: str, longest: int) -> Kernels:
        LONGEST.append(longest)
        return TaggedKernels() if device == "cuda" else select_kernels(device, longest=longest)

    monkeypatch.setattr(load, "select_kernels", select)
    monkeypatch.setattr(resolve, "find_device", lambda name: None)
    monkeypatch.setattr(resolve, "available_memory", lambda name: 1 << 33)
    return {"device": "cuda"}
