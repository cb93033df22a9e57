"""`parlay generate`: what becomes of the prompt, and what is said where nothing could be seen."""

import io
from pathlib import Path
from typing import Any

import pytest
from checkpoints import EOS, write_llama

from parlay import LLM, SamplingParams
from parlay.cli.main import main

GREEDY = ["--max-tokens", "6", "--temperature", "0"]
PARAMS = SamplingParams(max_tokens=6, temperature=0)
ASKED: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("generate") / "target", scale=2.0)


def test_a_chat_model_is_asked_through_its_template(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(model, speculative_config=None)
    (answered,), (completed,) = llm.chat(ASKED, PARAMS), llm.generate("hello", PARAMS)
    assert answered.outputs[0].text != completed.outputs[0].text
    for flags, expected in ([], answered), (["--chat"], answered), (["--raw"], completed):
        assert main(["generate", "hello", "--model", str(model), *GREEDY, *flags]) == 0
        assert capsys.readouterr().out == expected.outputs[0].text + "\n"


def test_the_embedded_model_completes(capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM("tiny-code", speculative_config=None)
    (answered,), (completed,) = llm.chat(ASKED, PARAMS), llm.generate("hello", PARAMS)
    for flags, expected in ([], completed), (["--chat"], answered):
        assert main(["generate", "hello", *GREEDY, *flags]) == 0
        assert capsys.readouterr().out == expected.outputs[0].text + "\n"


def test_an_answer_without_a_text_is_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = ["generate", "hello", "--model", str(model), "--allowed-token-ids", str(EOS)]
    assert main(ends) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == ""
    assert "the model's answer is empty" in captured.err
    assert main([*ends, "--n", "2"]) == 0
    assert "answer is empty" in capsys.readouterr().err
    assert main(["generate", "hello", "--model", str(model), *GREEDY]) == 0
    assert "answer is empty" not in capsys.readouterr().err


@pytest.mark.parametrize("prompt", [[], ["-"]])
def test_who_types_a_prompt_is_told_so_before_the_model_is_loaded(
    prompt: list[str], model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    asked = ["generate", *prompt, "--model", str(model), "--raw", *GREEDY]
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    assert main(asked) == 0
    piped = capsys.readouterr()
    assert "keyboard" not in piped.err
    monkeypatch.setattr("sys.stdin", Keyboard("hello"))
    assert main(asked) == 0
    typed = capsys.readouterr()
    assert typed.out == piped.out
    assert "reading the prompt from the keyboard; Ctrl-D" in " ".join(typed.err.split())
    monkeypatch.setattr("parlay.cli.generate.make_llm", lambda options: pytest.fail("loaded"))
    with pytest.raises(pytest.fail.Exception, match="loaded"):
        main(asked)
    assert "keyboard" in capsys.readouterr().err
