"""`parlay chat`: turns of a conversation, commands, mistakes."""

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import EOS, write_llama

from parlay import LLM, SamplingParams
from parlay.cli.conversation import acceptance, difference
from parlay.cli.main import main
from parlay.types.output import CompletionOutput, RequestMetrics, RequestOutput

Talk = Callable[..., tuple[int, str, str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("chat") / "target", scale=2.0)


@pytest.fixture
def talk(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Talk:
    def say(lines: list[str], *arguments: str, terminal: bool = False) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", (Terminal if terminal else io.StringIO)("".join(f"{x}\n" for x in lines)))
        status = main(["chat", "--model", str(model), "--max-tokens", "5", "--temperature", "0", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return say


def answers(model: Path, *turns: str, system: str | None = None) -> list[str]:
    """What the offline interface answers, turn by turn."""
    llm = LLM(model)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    texts = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        [output] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=5))
        texts.append(output.outputs[0].text)
        messages.append({"role": "assistant", "content": texts[-1]})
    return texts


def test_a_conversation(talk: Talk, model: Path) -> None:
    status, out, _ = talk(["hello", "", "and then?"])
    assert status == 0
    assert out == "".join(text + "\n" for text in answers(model, "hello", "and then?"))
    assert talk(["hello", "and then?"], "--speculative_config", '{"method": "ngram"}')[1] == out


def test_a_system_message(talk: Talk, model: Path) -> None:
    assert talk(["hello"], "--system", "be brief")[1].rstrip("\n") == answers(model, "hello", system="be brief")[0]


def test_commands(talk: Talk, model: Path) -> None:
    _, out, err = talk(["hello", "/reset", "x", "y", "/undo", "z", "/rest", "/exit", "never"])
    expected = [*answers(model, "hello"), *answers(model, "x", "y"), answers(model, "x", "z")[1]]
    assert out == "".join(text + "\n" for text in expected)
    assert "unknown command /rest; /help lists" in err


def test_messages_of_several_lines(talk: Talk, model: Path) -> None:
    _, out, _ = talk(['"""def f():', "    pass", '"""', '"""one"""', '"""left open'])
    assert out == "".join(text + "\n" for text in answers(model, "def f():\n    pass", "one", "left open"))


def test_parameters_may_change(talk: Talk, model: Path) -> None:
    lines = [
        "/set max_tokens 2",
        "hello",
        "/set temprature 1",
        "/set max_tokens many",
        "/set temperature",
        "/set n 0",
    ]
    status, out, err = talk([*lines, "/help"])
    [whole] = answers(model, "hello")
    (short,) = LLM(model).chat([{"role": "user", "content": "hello"}], SamplingParams(temperature=0, max_tokens=2))
    assert (status, out) == (0, short.outputs[0].text + "\n")
    assert whole.startswith(short.outputs[0].text)
    for words in ("max_tokens is 2", "did you mean 'temperature'", "/set [NAME VALUE]: changes", "/reset forgets"):
        assert words in " ".join(err.split())


def test_a_conversation_is_kept(talk: Talk, model: Path, tmp_path: Path) -> None:
    file, wrong = tmp_path / "talk.json", tmp_path / "wrong.json"
    wrong.write_text("[1]")
    talk(["hello", f"/save {file}"])
    assert [message["role"] for message in json.loads(file.read_text())] == ["user", "assistant"]
    _, out, err = talk([f"/load {file}", "and then?", f"/load {wrong}", f"/load {tmp_path / 'none.json'}"])
    assert out == answers(model, "hello", "and then?")[1] + "\n"
    assert "holds no conversation" in " ".join(err.split())
    assert "none.json cannot be read: No such file or directory" in " ".join(err.split())


def test_another_template(talk: Talk, model: Path) -> None:
    _, out, _ = talk(["hello"], "--chat-template", "{{ messages[0].content }}")
    [output] = LLM(model, speculative_config=None).generate("hello", SamplingParams(temperature=0, max_tokens=5))
    assert out == output.outputs[0].text + "\n"


@pytest.mark.parametrize(
    ("lines", "arguments", "words"),
    [
        (["x" * 600], [], "leaves no room"),
        (["x"], ["--n", "2"], "leave --n at 1"),
        (["x"], ["--chat-template", "{{ raise_exception('no') }}"], "refuses these messages: no"),
    ],
)
def test_mistakes_are_one_sentence(talk: Talk, lines: list[str], arguments: list[str], words: str) -> None:
    status, out, err = talk(lines, *arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_a_mistake_at_a_terminal_ends_nothing(talk: Talk, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed: Iterator[str] = iter(["x" * 600, "hello"])

    def type_line(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", type_line)
    status, out, err = talk([], terminal=True)
    assert status == 0
    assert out == answers(model, "hello")[0] + "\n"
    assert "/reset starts a new conversation" in " ".join(err.split())
    assert "Ctrl-D leaves" in " ".join(err.split())


def test_an_interrupt_ends_the_answer_alone(talk: Talk, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parlay.engine.engine import Engine

    real, left = Engine.step, iter(range(2))

    def step(self: Engine) -> Any:
        if next(left, None) == 1:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Engine, "step", step)
    status, out, _ = talk(["hello", "/reset", "x"])
    assert status == 0
    assert out.endswith("\n" + answers(model, "x")[0] + "\n")


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_the_same_answer_without_speculation(talk: Talk, temperature: str) -> None:
    arguments = ("--temperature", temperature, "--speculative-config", '{"method": "ngram"}')
    status, out, err = talk(["hello", "and then?", "/plain", "/plain"], *arguments)
    assert status == 0
    _, _, answer = out[:-1].partition("\n")
    third = len(answer) // 3
    assert answer[:third] == answer[third + 1 : 2 * third + 1] == answer[2 * third + 2 :]
    assert err.count("the same 5 tokens without speculation") == 2


def test_a_terminal_shows_who_guessed_and_how_fast_it_was(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    command = ["chat", "--model", str(model), "--max-tokens", "60", "--temperature", "0", "--ignore-eos"]
    assert main([*command, "--speculative-config", '{"method": "ngram", "lengths": "fixed"}']) == 0
    said = capsys.readouterr().err
    assert "\x1b[" in screen.getvalue()
    assert "drafts by ngram" in said
    assert "cut off: --max-tokens 60" in said
    assert "60 tokens in " in said
    assert "tokens/s" in said
    assert re.search(r"tokens per step, \d+ of \d+ draft tokens accepted", said)


def test_a_model_that_completes_code_says_so(
    talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "completes code" not in talk([], terminal=True)[2]
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert main(["chat", "tiny-code"]) == 0
    assert "this model completes code; `parlay chat smollm2` talks" in " ".join(capsys.readouterr().err.split())


def test_an_answer_without_a_text_is_told(talk: Talk) -> None:
    assert "answer is empty" in talk(["hello"], "--allowed-token-ids", str(EOS))[2]
    assert "answer is empty" not in talk(["hello"])[2]


def test_what_nobody_said_of_sampling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_llama(tmp_path / "target", scale=2.0)

    def said(*flags: str, command: str = "chat") -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\n" if command == "chat" else ""))
        named = [command, "--model", str(model)] if command == "chat" else [command, str(model), "hello"]
        assert main([*named, "--seed", "3", "--max-tokens", "12", "--speculative-config", "none", *flags]) == 0
        return capsys.readouterr().out

    def expected(**values: Any) -> str:
        llm = LLM(model, speculative_config=None)
        params = SamplingParams(seed=3, max_tokens=12, **values)
        return llm.chat([{"role": "user", "content": "hello"}], params)[0].outputs[0].text + "\n"

    usual = expected(temperature=0.7, top_p=0.9)
    assert said() == said(command="run") == usual
    assert said("--temperature", "0.2") == expected(temperature=0.2, top_p=0.9)
    assert said("--generation-config", "vllm") == expected() != usual
    (model / "generation_config.json").write_text('{"temperature": 0.3}')
    assert said() == said(command="run") == expected(temperature=0.3) != expected(temperature=0.3, top_p=0.9)


def test_a_difference_is_named() -> None:
    def output(*tokens: int) -> RequestOutput:
        return RequestOutput(
            request_id=0, prompt=None, prompt_token_ids=(1,), finished=True,
            outputs=(CompletionOutput(index=0, text="", token_ids=tokens, sources=("target",) * len(tokens)),),
        )  # fmt: skip

    assert "the same 2 tokens" in difference(output(1, 2), output(1, 2))
    assert difference(output(1, 2), output(1, 3)).startswith("token 2 differs")
    assert difference(output(1, 2), output(1)).startswith("token 2 differs")


def test_bars_show_how_often_guesses_were_right() -> None:
    metrics = RequestMetrics(drafts=4, drafted=12, accepted=5, accepted_per_position=(4, 1, 0))
    one = CompletionOutput(index=0, text="", token_ids=(), sources=(), metrics=metrics)
    line = acceptance(RequestOutput(request_id=0, prompt=None, prompt_token_ids=(1,), outputs=(one,), finished=True))
    assert line.endswith("1 █ 100%  2 ▂ 25%  3   0%")
