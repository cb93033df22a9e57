"""Parameters that a request does not give: the model's authors' own, if they have said any."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama
from gguf_files import write_gguf
from serving import Live, engine_of

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.checkpoints.sampling_defaults import sampling_defaults
from parlay.cli.main import main

OWN = {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.3, "do_sample": True, "max_length": 9, "min_p": None}
ASKED = {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.3}
PROMPT: Any = {"prompt_token_ids": [5, 6, 7, 8]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_llama(tmp_path_factory.mktemp("defaults") / "target", scale=2.0)
    (path / "generation_config.json").write_text(json.dumps(OWN))
    return path


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, tuple[int, ...]]:
    llm = LLM(model, speculative_config=None, generation_config="vllm")
    asked = {"own": ASKED, "colder": {**ASKED, "temperature": 0.0}, "none": {}}
    return {
        name: llm.generate(PROMPT, SamplingParams(**values, seed=3, max_tokens=12))[0].outputs[0].token_ids
        for name, values in asked.items()
    }


def test_offline(model: Path, expected: dict[str, tuple[int, ...]]) -> None:
    llm = LLM(model, speculative_config=None)
    assert llm.get_default_sampling_params() == SamplingParams(**ASKED)
    params = SamplingParams.parse({**llm.sampling_defaults, "seed": 3, "max_tokens": 12})
    assert llm.generate(PROMPT, params)[0].outputs[0].token_ids == expected["own"]
    # Who gives parameters has given all of them, as in vLLM.
    own = SamplingParams(seed=3, max_tokens=12)
    assert llm.generate(PROMPT, own)[0].outputs[0].token_ids == expected["none"]
    assert LLM(model, speculative_config=None, generation_config="vllm").sampling_defaults == {}


@pytest.fixture(scope="module")
def live(model: Path) -> Iterator[Live]:
    with engine_of(model, speculative_config=None) as engine, Live(engine) as server:
        yield server


def test_over_http(live: Live, expected: dict[str, tuple[int, ...]]) -> None:
    body = {"prompt": PROMPT["prompt_token_ids"], "seed": 3, "max_tokens": 12, "return_token_ids": True}
    own = {"temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    for name, more in (("own", {}), ("colder", {"temperature": 0}), ("own", {"top_k": None}), ("none", own)):
        (choice,) = live.post("/v1/completions", {**body, **more}).json()["choices"]
        assert tuple(choice["token_ids"]) == expected[name], more


def test_on_the_command_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "abc", "--raw", "--model", str(model), "--seed", "3", "--max-tokens", "12"]
    texts = []
    for more in (
        [],
        ["--temperature", "0.7", "--top-k", "5", "--repetition-penalty", "1.3", "--generation-config", "vllm"],
        ["--generation-config", "vllm"],
    ):
        assert main([*command, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_what_a_gguf_file_says(model: Path, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"general__sampling__temp": 0.5, "general__sampling__top_k": 7}
    file = write_gguf(model, tmp_path / "m.gguf", **keys)
    assert sampling_defaults(file) == {"temperature": 0.5, "top_k": 7}
    assert sampling_defaults(file, "none") == sampling_defaults(write_gguf(model, tmp_path / "n.gguf")) == {}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"top_k": 50.0}, {"top_k": 50}),
        ({"top_k": 0.0, "temperature": 1}, {"top_k": 0, "temperature": 1}),
        ({"top_p": 0, "top_k": 40, "temperature": 0.7}, {"top_k": 1, "temperature": 0.7}),
        ({"top_p": 0.0}, {"top_k": 1}),
        ({"top_p": 1.5, "temperature": 0.5}, {"temperature": 0.5}),
        ({"top_k": -7, "min_p": 0.1}, {"min_p": 0.1}),
        ({"repetition_penalty": 0}, {}),
        ({"temperature": float("nan"), "top_k": 2.5}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_odd_values_fail_no_request(
    tmp_path: Path, given: dict[str, Any], read: dict[str, Any], mark: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What has a meaning keeps it; the rest is named once, when the model is loaded."""
    (tmp_path / "generation_config.json").write_text(mark + json.dumps(given))
    caplog.set_level("WARNING")
    assert sampling_defaults(tmp_path) == read
    SamplingParams.parse(read)
    lost = {name for name in given if name not in read and (name, given[name]) not in {("top_p", 0)}}
    assert len(caplog.records) == len(lost)
    assert all(f"has {name}=" in caplog.text for name in lost)


def test_from_elsewhere_and_what_is_wrong(model: Path, tmp_path: Path) -> None:
    assert sampling_defaults(Path("nowhere"), str(model)) == ASKED
    with pytest.raises(ConfigError, match=r"generation_config\.json does not exist; give auto, vllm or a directory"):
        sampling_defaults(model, str(tmp_path))
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(ModelError, match="has temperature='hot', which must be a number"):
        sampling_defaults(tmp_path)
