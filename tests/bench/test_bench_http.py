"""`parlay bench http`: a real server beside `LLM`, the same texts, and figures that fit together."""

import json

import pytest

from parlay.bench.http import _flags, _server, measure
from parlay.bench.options import HttpOptions
from parlay.cli.main import main
from parlay.errors import ConfigError, ParlayError


def test_three_ways_of_the_same_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-prompts", "3", "--input-len", "16", "--output-len", "8", "--num-iters", "1", "--num-first", "1"]
    status = main(["bench", "http", *sizes, "--num-iters-warmup", "0", "--temperature", "0.8"])
    assert status == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    offline, whole, stream = report["rows"]
    assert [row["way"] for row in report["rows"]] == ["LLM", "whole", "stream"]
    assert all(row["same_text"] and row["tokens_per_s"] > 0 for row in report["rows"])
    assert offline["cost"] == 0
    assert offline["first_token_ms"] > 0
    assert stream["first_token_ms"] > 0
    assert whole["events"] is None
    # Text may be held back for the rest of a character, so that there are fewer events than tokens.
    assert 3 <= stream["events"] <= 3 * 8
    assert report["workload"]["num_prompts"] == 3


def test_a_server_that_does_not_start_says_why() -> None:
    refused = _server({"model": "tiny-code"}, '{"method": "ngram", "no_such": 1}')
    with pytest.raises(ParlayError, match=r"the server did not start: .*unknown ngram option"), refused:
        pass


def test_what_does_not_fit_is_refused_before_a_server_starts() -> None:
    with pytest.raises(ConfigError, match="exceed the context"):
        measure({}, None, HttpOptions(input_len=4000), lambda label: None)


def test_options_become_flags() -> None:
    values = {"max_num_seqs": 3, "enable_prefix_caching": False, "enforce_eager": True, "dtype": "bf16", "seed": None}
    assert list(_flags(values)) == [
        "--max-num-seqs", "3", "--no-enable-prefix-caching", "--enforce-eager", "--dtype", "bf16",
    ]  # fmt: skip
