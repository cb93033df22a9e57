"""Flags from a file and from variables, and which of them wins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parlay import env
from parlay.cli.main import main
from parlay.config import SpeculativeConfig


def test_a_flag_wins_over_a_variable_and_that_over_the_file(
    served: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "parlay.yaml"
    file.write_text(
        "model: some/model\nmax-model-len: 512\nblock_size: 8\nport: 9000\nseed: 3\nenable-prefix-caching: false\n"
        "speculative-config:\n  method: suffix\n  num_speculative_tokens: 7\nallowed-origins: [http://a, http://b]\n"
    )
    monkeypatch.setenv("PARLAY_FLAG_MAX_MODEL_LEN", "256")
    monkeypatch.setenv("PARLAY_FLAG_BLOCK_SIZE", "4")
    monkeypatch.setenv("PARLAY_FLAG_MAX_TOKENS", "9")  # a flag of other commands
    assert main(["serve", "--config", str(file), "--block-size", "2", "--port=9001"]) == 0
    ((values, speculative, config),) = served
    assert (values["model"], values["seed"], values["enable_prefix_caching"]) == ("some/model", 3, False)
    assert (values["max_model_len"], values["block_size"]) == (256, 2)
    assert speculative == SpeculativeConfig.parse({"method": "suffix", "num_speculative_tokens": 7})
    assert (config.port, config.allowed_origins) == (9001, ("http://a", "http://b"))


def test_lists_in_variables(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With commas, or in JSON as on the command line."""
    for text in ("http://a,http://b", '["http://a", "http://b"]'):
        monkeypatch.setenv("PARLAY_FLAG_ALLOWED_ORIGINS", text)
        assert main(["serve", "some/model"]) == 0
        assert served.pop()[2].allowed_origins == ("http://a", "http://b")


def test_nulls_and_whole_floats_in_a_file(served: list[Any], tmp_path: Path) -> None:
    """As tools write options that are not set, and numbers."""
    file = tmp_path / "parlay.yaml"
    inner = "{method: ngram, model: null, num_speculative_tokens: null, prompt_lookup_max: 3}"
    file.write_text(
        f"max-model-len: 512.0\nseed: null\nport: ~\nrequest-timeout: 30.0\nspeculative-config: {inner}\n"
        "enable-prefix-caching:\nallowed-origins: null\n"
    )
    assert main(["serve", "--config", str(file)]) == 0
    file.write_text("speculative-config: [ngram, suffix]\n")
    assert main(["serve", "--config", str(file)]) == 0
    file.write_text("speculative-config: null\n")
    assert main(["serve", "--config", str(file)]) == 0
    assert main(["serve"]) == 0
    (values, speculative, config), (_, several, _), (_, none, _), (plain, _, usual) = served
    assert values == {**plain, "max_model_len": 512}
    assert config == replace(usual, request_timeout=30)
    assert speculative == SpeculativeConfig("ngram", options={"prompt_lookup_max": 3})
    assert [one.method for one in several.several] == ["ngram", "suffix"]
    assert none == SpeculativeConfig("none")


def test_a_method_by_its_name(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["serve", "--speculative-config", "ngram"]) == 0
    monkeypatch.setenv("PARLAY_FLAG_SPECULATIVE_CONFIG", "none")
    monkeypatch.setenv("PARLAY_FLAG_STRICT_FIELDS", "true")
    assert main(["serve"]) == 0
    assert [call[1] for call in served] == [SpeculativeConfig("ngram"), SpeculativeConfig("none")]
    assert [call[2].strict_fields for call in served] == [False, True]
    assert SpeculativeConfig.parse("null") == SpeculativeConfig("none")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-modl-len: 3", "'max-modl-len' is not a flag of parlay serve (did you mean 'max-model-len'?)"),
        ("max-model-len: 3\nmax_model_len: 4", "gives max-model-len twice"),
        ("port: 1\nmax-model-len: 3\nport: 2", "gives port twice, again in line 3; leave one out"),
        ("speculative-config:\n  method: ngram\n  method: suffix", "gives method twice, again in line 3"),
        ("speculative-config: {method: ngram, 'method': suffix}", "gives method twice"),
        ("ctx-size: 4096", "'ctx-size' is not a flag of parlay serve: write --max-model-len"),
        ("max-model-len: many", "max-model-len must be of type int, not 'many'"),
        ("enable-prefix-caching: 7", "enable-prefix-caching must be true or false, not 7"),
        ("dtype: float8", "dtype must be auto or float32"),
        ("[1, 2]", "must have flags and their values"),
        ("a: [", "is not valid YAML"),
        ("!!python/object/apply:os.getcwd []", "is not valid YAML"),
    ],
)
def test_files_that_say_nothing(
    served: list[Any], tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert main(["serve", "--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not served


def test_yaml_that_repeats_nothing(served: list[Any], tmp_path: Path) -> None:
    """Anchors, merged mappings and equal keys of different mappings are YAML's own and stay so."""
    file = tmp_path / "a.yaml"
    file.write_text(
        "max-model-len: 4k\nkv-cache-memory: 1GiB\n"
        "speculative-config:\n- &one {method: ngram, num_speculative_tokens: 5}\n- {<<: *one, method: suffix}\n"
    )
    assert main(["serve", "some/model", "--config", str(file)]) == 0
    ((values, speculative, _),) = served
    assert (values["model"], values["max_model_len"], values["kv_cache_memory"]) == ("some/model", 4000, 1 << 30)
    assert [one.method for one in speculative.several] == ["ngram", "suffix"]


def test_threads_are_the_variable(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ("-t", "--threads"):
        monkeypatch.setenv("PARLAY_THREADS", "1")
        assert main(["serve", "some/model", flag, "3"]) == 0
        assert env.threads() == 3
    assert main(["serve", "some/model", "--threads", "0"]) == 2


def test_a_template_is_read_before_a_model(
    served: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }}")
    assert main(["serve", "--chat-template", str(file)]) == 0
    assert main(["serve", "--chat-template", "{{ messages[-1].content }}"]) == 0
    assert [call[2].chat_template for call in served] == ["{{ messages[0].content }}", "{{ messages[-1].content }}"]
    assert main(["serve", "--chat-template", "chatml"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_no_file_and_no_such_variable(
    served: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    monkeypatch.setenv("PARLAY_FLAG_MAX_MODEL_LENGTH", "3")
    assert main(["serve"]) == 2
    assert "PARLAY_FLAG_MAX_MODEL_LENGTH matches no flag (did you mean 'max-model-len'?)" in capsys.readouterr().err
    assert not served
