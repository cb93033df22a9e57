"""A conversation in a terminal, without an engine: its commands, its keys, its seeds, and answers that were cut."""

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from parlay import SamplingParams
from parlay.cli import chat, serving
from parlay.cli.conversation import Conversation
from parlay.cli.serving import cut_off, modern, read_stdin
from parlay.cli.train import few
from parlay.types.output import CompletionOutput, RequestMetrics, RequestOutput


def finished(text: str = "yes", reason: str = "stop", tokens: int = 3) -> RequestOutput:
    metrics = RequestMetrics(arrival=0.0, first_token=0.1, finished=1.0, emitted=tokens, steps=tokens)
    one = CompletionOutput(
        index=0,
        text=text,
        token_ids=(1,) * tokens,
        sources=("target",) * tokens,
        finish_reason=reason,
        metrics=metrics,
    )
    return RequestOutput(request_id=0, prompt=None, prompt_token_ids=(1,), outputs=(one,), finished=True)


class Echo:
    """As much of `LLM` as a conversation needs; remembers what was asked, and with which parameters."""

    model_name = "echo"

    def __init__(self, *answers: RequestOutput) -> None:
        self.asked: list[tuple[list[dict[str, Any]], SamplingParams]] = []
        self.answers = list(answers)
        self.engine = SimpleNamespace(
            max_model_len=64, codec=SimpleNamespace(tokenizer=None, prefers_chat=True), config=SimpleNamespace(seed=0)
        )

    def chat_prompt(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        return list(messages)

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[RequestOutput]:
        self.asked.append((prompt, params))
        yield self.answers.pop(0) if self.answers else finished()


@pytest.fixture
def notes() -> Console:
    return Console(file=io.StringIO(), width=200, highlight=False)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.Printer, "show", lambda self, one, *more: print(one.text, end=""))


def said(notes: Console) -> str:
    return notes.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def talk(llm: Any, notes: Console, params: SamplingParams | None = None) -> Conversation:
    return Conversation(llm, params or SamplingParams(max_tokens=None), None, None, notes)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/help", "/undo              forgets"),
        ("/?", "/reset             forgets the conversation\n"),  # Ollama's
        ("/set", "temperature 1.0\n"),
        ("/show", "max_tokens as many as the context has room for"),  # Ollama's
        ("/show parameters", "seed drawn"),
        ("/set temperature 0.5", "temperature is 0.5"),
        ("/set parameter temperature 0.5", "temperature is 0.5"),  # Ollama's
        ("/set system You are a pirate.", "the system message is set"),
        ("/clear", "new conversation"),  # Ollama's and llama.cpp's
        ("/undo", "nothing to undo"),
        ("/plain", "no answer yet"),
    ],
)
def test_commands_and_what_others_call_them(line: str, words: str, notes: Console) -> None:
    assert chat._run_command(talk(Echo(), notes), notes, line)
    assert words in said(notes)


@pytest.mark.parametrize("line", ["/exit", "/bye", "/quit", "/q"])
def test_ways_to_leave(line: str, notes: Console) -> None:
    assert not chat._run_command(talk(Echo(), notes), notes, line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/rest", "unknown command /rest; /help"),
        ("/set temperature", r"/set \[NAME VALUE\]: changes"),
        ("/save", "/save FILE: writes"),
        ("/undo 2", "/undo: forgets the last exchange"),
        ("/load nothing.json", "nothing.json cannot be read: No such file or directory$"),
        ("/load .", r"\. cannot be read: Is a directory$"),
        ("/save /nowhere/x.json", "/nowhere/x.json cannot be written: No such file"),
    ],
)
def test_a_slip_has_an_answer_of_its_own(line: str, words: str, notes: Console) -> None:
    with pytest.raises(chat.ConfigError, match=words):
        chat._run_command(talk(Echo(), notes), notes, line)
    assert "/reset" not in said(notes)


def test_a_file_may_have_a_blank_in_its_name(tmp_path: Path, notes: Console) -> None:
    llm = Echo()
    first, second = talk(llm, notes), talk(llm, notes)
    first.answer("hello")
    chat._run_command(first, notes, f"/save {tmp_path / 'my conv.json'}")
    chat._run_command(second, notes, f"/load {tmp_path / 'my conv.json'}")
    second.answer("and then?")
    assert [m["content"] for m in llm.asked[1][0]] == ["hello", "yes", "and then?"]


def test_seeds_are_drawn_and_one_that_is_given_is_kept(notes: Console) -> None:
    llm = Echo()
    for _ in range(2):
        one = talk(llm, notes)
        one.answer("a")
        one.answer("a")
    assert len({params.seed for _, params in llm.asked}) == 4
    fixed = talk(llm, notes, SamplingParams(seed=7, max_tokens=None))
    fixed.answer("a")
    assert llm.asked[-1][1].seed == 7


class Keys:
    """Lines that are typed, and keys that interrupt."""

    def __init__(self, *typed: Any) -> None:
        self.typed = list(typed)

    def __call__(self, prompt: str) -> str:
        key = self.typed.pop(0) if self.typed else EOFError
        if isinstance(key, str):
            return key
        raise key


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ([KeyboardInterrupt, "a", KeyboardInterrupt, "b"], ["a", "b"]),
        ([KeyboardInterrupt, KeyboardInterrupt, "never"], []),
        (["a", EOFError, "never"], ["a"]),
    ],
)
def test_an_interrupt_clears_the_line_and_a_second_one_leaves(
    typed: list[Any], lines: list[str], notes: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", Keys(*typed))
    assert list(chat._lines(notes)) == lines
    assert ("Ctrl-D or /exit leaves" in said(notes)) == (KeyboardInterrupt in typed)


@pytest.mark.parametrize(
    ("output", "params", "words"),
    [
        (finished(), SamplingParams(max_tokens=3), ""),
        (finished(reason="length"), SamplingParams(max_tokens=3), "cut off: --max-tokens 3"),
        (finished(reason="length"), SamplingParams(max_tokens=9), "cut off: the context of 8,192 tokens is full"),
        (finished(reason="length"), SamplingParams(max_tokens=None), "cut off: the context of 8,192 tokens is full"),
        (
            finished('{"a": ', "length"),
            SamplingParams.parse({"max_tokens": 3, "structured_outputs": {"json": {"type": "object"}}}),
            "--max-tokens 3; the structured output is incomplete",
        ),
    ],
)
def test_an_answer_that_was_cut_says_so(
    output: RequestOutput, params: SamplingParams, words: str, notes: Console
) -> None:
    found = cut_off(output, params, 8192)
    assert bool(found) == bool(words)
    assert words in found
    cut = talk(Echo(output), notes, params).answer("hello")
    assert cut == ("incomplete" in words), "which is the exit status"
    assert ("cut off" in said(notes)) == bool(words)


class Pipe(io.StringIO):
    def isatty(self) -> bool:
        return False


def test_what_is_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Pipe("What is 2+2?\n"))
    assert read_stdin() == "What is 2+2?"
    monkeypatch.setattr("sys.stdin", Pipe(""))
    assert read_stdin() == ""
    monkeypatch.setattr("sys.stdin", None)
    assert read_stdin() == ""


def test_older_flags_are_one_line_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    older = {"speculative_model": "tiny-code-draft", "num_speculative_tokens": 3, "max_model_len": 64}
    left, speculative = modern(older, None)
    assert (left, speculative) == (
        {"max_model_len": 64}, {"model": "tiny-code-draft", "num_speculative_tokens": 3},
    )  # fmt: skip
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert """--speculative-config '{"model": "tiny-code-draft", "num_speculative_tokens": 3}'""" in error
    assert modern({"max_model_len": 64}, "ngram")[0] == {"max_model_len": 64}
    assert capsys.readouterr().err == ""


def test_a_run_of_few_steps_says_so() -> None:
    assert few(1).startswith("1 step of training")
    assert "12 steps" in few(12)
