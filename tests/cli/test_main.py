"""The command line: what it prints, what it refuses."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from checkpoints import write_llama

from parlay import SamplingParams
from parlay.cli.colour import Colourer, Palette
from parlay.cli.flags import normalise
from parlay.cli.main import main
from parlay.config import EngineConfig
from parlay.config.docs import attribute_docs
from parlay.text.detokenizer import Detokenizer
from parlay.text.tokenizer import TextCodec
from parlay.types.output import Rejected


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("cli") / "target", scale=2.0)


def test_generate_prints_the_text_and_a_summary(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "abcabc", "--model", str(model), "--max-tokens", "12", "--temperature", "0"]
    assert main(arguments) == 0
    plain = capsys.readouterr()
    assert plain.out.strip()
    assert "tokens/s" in plain.err
    # Dashes or underscores, JSON for nested options; the text is the same.
    speculative = ["--speculative_config", json.dumps({"method": "ngram", "num_speculative_tokens": 3})]
    assert main([*(a.replace("max-tokens", "max_tokens") for a in arguments), *speculative]) == 0
    assert capsys.readouterr().out == plain.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_output_that_cannot_be_written() -> None:
    """A disk that is full is told in a line; standard output that was closed is done without."""
    command = f"{sys.executable} -m parlay.cli.main list"
    full = subprocess.run(["sh", "-c", f"{command} >/dev/full"], capture_output=True, text=True, check=False)
    assert full.stderr == (
        "parlay: the output cannot be written: No space left on device; free space, or write elsewhere\n"
    )
    assert full.returncode == 1
    closed = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_generate_reads_stdin_and_gives_n_completions(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin"))
    assert main(["generate", "-", "--model", str(model), "--n", "2", "--max-tokens", "4", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert " 0 " in out
    assert " 1 " in out


def test_generate_gives_the_best_of_several(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "abcabc", "--model", str(model), "--max-tokens", "6", "--seed", "3"]
    assert main([*arguments, "--best-of", "4"]) == 0
    best = capsys.readouterr().out.strip()
    assert main([*arguments, "--n", "4", "--best-of", "4"]) == 0
    assert best
    assert best in capsys.readouterr().out


def test_what_is_not_shown_has_no_flag(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "abc", "--model", str(model), "--logprobs", "2"])
    assert "unknown flag --logprobs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere"], "there is no model '/nowhere'"),
        (["--model", "tiny-cod"], "did you mean 'tiny-code'"),
        (["--speculative-config", "{"], "not valid JSON"),
        (["--speculative-config", '{"method": "ngrm"}'], "did you mean 'ngram'"),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 0}'], "at least 1"),
        (["--temperature", "-1"], "temperature must be between 0 and"),
        (["--tensor-parallel-size", "65"], "between 1 and 64"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(
    model: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if "--model" in arguments else ["--model", str(model), *arguments]
    assert main(["generate", "x", *given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_version_needs_no_torch() -> None:
    code = """
import sys
from parlay.cli.main import main
try:
    main(["--version"])
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("parlay ")


@pytest.mark.parametrize("cls", [EngineConfig, SamplingParams])
def test_every_option_has_a_help_text(cls: type) -> None:
    assert set(attribute_docs(cls)) == {f.name for f in fields(cls)}


def test_normalise_leaves_values_alone() -> None:
    assert normalise(["--a_b=c_d", "--e_f", "g_h"]) == ["--a-b=c_d", "--e-f", "g_h"]


def test_coloured_text_is_the_text(model: Path) -> None:
    codec = TextCodec(model)
    tokens = codec.encode("naïve ☃ text")
    palette = Palette()
    colourer, growing = Colourer(codec.tokenizer, palette), Detokenizer(codec, SamplingParams())
    shown = ""
    for n, token in enumerate(tokens, start=1):
        growing.append(token)
        shown += colourer.update(tokens[:n], ["ngram"] * n, growing.text).plain
    assert shown == "naïve ☃ text"
    # Text that is held back because it may begin a stop string comes later, in full.
    colourer = Colourer(codec.tokenizer, palette)
    held = [colourer.update(tokens, ["ngram"] * len(tokens), text).plain for text in ("na", "naïve", "naïve ☃ text")]
    assert held == ["na", "ïve", " ☃ text"]
    # A stop string cut the text: nothing beyond it is shown.
    cut = Colourer(codec.tokenizer, palette).update(tokens, ["ngram"] * len(tokens), "na")
    assert cut.plain == "na"


def test_rejected_guesses_are_struck_through(model: Path) -> None:
    codec = TextCodec(model)
    tokens, palette = codec.encode("ab"), Palette()
    rejected = [Rejected(1, codec.encode("x")[-1], "ngram")]
    text = Colourer(codec.tokenizer, palette).update(tokens, ["target"] * len(tokens), "ab", rejected)
    assert text.plain == "axb"
    (span,) = [span for span in text.spans if "strike" in str(span.style)]
    assert text.plain[span.start : span.end] == "x"
    assert palette.style("ngram") in str(span.style)


def test_what_a_command_needs_is_named_as_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "medusa", "--output", "x"])
    assert stopped.value.code == 2
    assert "the following arguments are required: --target;" in capsys.readouterr().err
