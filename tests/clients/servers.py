"""Servers that all clients share: one that is open, one with keys."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from served import KEYS, NGRAM, Served

from parlay import LLM


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A server that everybody may ask, with n-gram speculation."""
    with Served("--speculative-config", NGRAM) as served:
        yield served


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that wants keys, and computes at most two completions for each."""
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    limits = ("--max-open-per-key", "2", "--max-body-bytes", "20000")
    with Served("--speculative-config", NGRAM, "--api-key-file", str(file), *limits) as served:
        yield served


@pytest.fixture(scope="session")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="session")
def offline() -> LLM:
    """The offline engine without speculation, whose tokens are everybody's."""
    return LLM("tiny-code")


@pytest.fixture(scope="session")
def tools() -> Path:
    """Where `make clients` puts what is installed or made for these tests."""
    folder = Path(__file__).parents[2] / "build" / "clients"
    assert (folder / "node_modules").is_dir(), "npm's packages are missing; run: make clients"
    return folder
