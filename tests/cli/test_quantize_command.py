"""`parlay quantize` at the command line."""

from pathlib import Path

import pytest
from checkpoints import write_llama

from parlay import LLM, SamplingParams
from parlay.cli.main import main
from parlay.models.select import describe_model


def test_a_model_in_four_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = write_llama(tmp_path / "model"), tmp_path / "out.gguf"
    assert main(["quantize", str(model), str(file)]) == 0
    size = file.stat().st_size
    assert f"out.gguf: {size / 1e6:,.1f} MB, 6." in capsys.readouterr().out.replace("\n", "")
    assert LLM(file, max_model_len=64).generate("abc", SamplingParams(max_tokens=4))[0].outputs[0].token_ids
    assert main(["quantize", str(model), str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["quantize", str(model), str(file), "--kind", "bf16", "--force"]) == 0
    assert file.stat().st_size > size
    assert describe_model(str(file)).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "out.gguf"], "there is no model 'nowhere'"),
        (["tiny-code", "out.bin"], "must end in .gguf"),
        (["tiny-code-eagle3", "out.gguf"], "tiny-code-eagle3"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
