"""What a server says when it is ready: what it serves, what it took, and which option changes it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write_llama

from parlay import AsyncLLM
from parlay.cli.announce import facts, figures, loading
from parlay.config import ServerConfig

SAMPLING = {"temperature": 0.5, "top_k": 20, "do_sample": True}
TOOLS = "{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}{{ messages[0].content }}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_llama(tmp_path_factory.mktemp("announce") / "some-model", scale=2.0)
    (path / "generation_config.json").write_text(json.dumps(SAMPLING))
    return path


def told(model: Path | str, config: ServerConfig | None = None, **options: object) -> dict[str, str]:
    engine = AsyncLLM(model, **options)  # type: ignore[arg-type]
    try:
        return facts(engine, config or ServerConfig(), "http://localhost:8000/")
    finally:
        asyncio.run(engine.close())


def test_what_is_served_and_what_it_takes(model: Path) -> None:
    found = told(model, speculative_config={"method": "ngram"}, num_blocks=64, block_size=16)
    assert found["model"].startswith(f"{model}, ")
    assert found["model"].endswith("kB of weights")
    assert found["context"] == "512 tokens"
    assert "for 1,024 tokens, taken as it fills; --kv-cache-memory changes it" in found["cache"]
    assert found["speculation"] == "ngram"
    assert (
        found["sampling"]
        == "temperature 0.5, top-p 1, top-k 20 unless a request says otherwise (--generation-config)"
    )
    assert found["numerics"].startswith("some-model-")
    assert found["page"] == "http://localhost:8000/"
    assert int(found["threads"]) > 0
    plain = told(model, speculative_config=None, generation_config="vllm")
    assert plain["speculation"] == "none"
    assert plain["sampling"] == "temperature 1, top-p 1 unless a request says otherwise (--generation-config)"


@pytest.fixture
def with_a_place(model: Path) -> Iterator[Path]:
    """A model whose template tells of tools and of reasoning."""
    file = model / "tokenizer_config.json"
    before = file.read_text()
    file.write_text(json.dumps({"chat_template": TOOLS + "{# <think> #}"}))
    yield model
    file.write_text(before)


def test_tools_that_the_template_ignores(model: Path) -> None:
    assert told(model)["tools"] == "hermes; the system message describes them, since the chat template ignores tools"


def test_forms_of_calls_and_of_reasoning(with_a_place: Path) -> None:
    found = told(with_a_place)
    assert (found["tools"], found["reasoning"]) == ("hermes", "between <think> and </think>")
    named = told(with_a_place, ServerConfig(tool_call_parser="mistral", reasoning_parser="none"))
    assert (named["tools"], named["reasoning"]) == ("mistral", "none")


def test_a_log_for_programs_has_values(model: Path) -> None:
    engine = AsyncLLM(model, speculative_config={"method": "ngram"}, num_blocks=64, block_size=16)
    try:
        found = figures(engine, ServerConfig(), "http://localhost:8000/")
    finally:
        asyncio.run(engine.close())
    assert json.loads(json.dumps(found)) == found
    assert (found["max_model_len"], found["cache_tokens"], found["methods"]) == (512, 1024, ["ngram"])
    assert found["sampling"] == {"temperature": 0.5, "top_k": 20}
    assert isinstance(found["threads"], int)


def test_what_is_loaded(model: Path) -> None:
    assert loading("owner/model") == "loading owner/model"
    size = sum(file.stat().st_size for file in model.iterdir())
    assert loading(str(model)) == f"loading {model}, {size / 1000:.0f} kB"


def test_the_default_cache_is_modest() -> None:
    """1 GiB at most, or what four sequences of full length need, however much memory is free."""
    engine = AsyncLLM("tiny-code", speculative_config=None, max_num_seqs=256)
    asyncio.run(engine.close())
    assert 0 < engine.facts.memory.cache <= 1 << 30
