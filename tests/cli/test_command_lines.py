"""Command lines as people write them who know llama.cpp, Ollama and vLLM: parsed, and never run."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from parlay.cli import bench, chat, demo, explain, generate, run, serve, verify
from parlay.cli.flags import Parser, _int, near_flag, normalise
from parlay.cli.main import main
from parlay.cli.serving import read_speculation
from parlay.cli.template import read_template
from parlay.config.other_flags import _BY_FLAG, answer
from parlay.errors import ConfigError

COMMANDS = run, chat, generate, serve, demo, bench, explain, verify


@pytest.fixture(scope="module")
def parser() -> Parser:
    made = Parser(prog="parlay")
    commands = made.add_subparsers(required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return made


def parse(parser: Parser, line: list[str]) -> dict[str, Any]:
    return vars(parser.parse_args(normalise(line)))


@pytest.mark.parametrize(
    "words",
    [
        ["smollm2", "--temperature", "0", "Name five rivers."],
        ["--temperature", "0", "smollm2", "Name five rivers."],
        ["smollm2", "Name five rivers.", "--temperature", "0"],
        ["smollm2", "Name", "--temperature=0", "five", "rivers."],
        ["--model", "smollm2", "--temperature", "0", "Name five rivers."],
        ["--model=smollm2", "smollm2", "Name five rivers.", "--temperature", "0"],
        ["--verbose", "smollm2", "--temperature", "0", "--", "Name five rivers."],
    ],
    ids=" ".join,
)
def test_flags_may_stand_between_model_and_prompt(parser: Parser, words: list[str]) -> None:
    found = parse(parser, ["run", *words])
    assert (found["model"], found["prompt"], found["temperature"]) == ("smollm2", "Name five rivers.", 0)
    assert parse(parser, ["run", "smollm2", "--n", "1", "--", "-n 3"])["prompt"] == "-n 3"
    assert parse(parser, ["run", "smollm2", "--n", "1", "--", "--ctx-size"])["prompt"] == "--ctx-size"


def test_words_behind_a_flag_that_may_be_repeated(parser: Parser) -> None:
    for line in (["m", "--served-model-name", "a", "b"], ["--model", "m", "--served-model-name", "a", "b"]):
        found = parse(parser, ["serve", *line, "--port", "1"])
        assert (found["model"], found["served_model_name"]) == ("m", ["a", "b"])
    found = parse(parser, ["serve", "--served-model-name", "a", "m"])
    assert (found["model"], found["served_model_name"]) == ("m", ["a"])
    for line in (["--model", "m", "--stop", "a", "hi"], ["m", "--stop", "a", "hi"]):
        found = parse(parser, ["run", *line])
        assert (found["model"], found["prompt"], found["stop"]) == ("m", "hi", ["a"])


@pytest.mark.parametrize(
    "command",
    ["run", "chat", "serve", "demo", "explain", "verify", "bench methods", "bench latency", "bench throughput",
     "bench perplexity --text x"],
)  # fmt: skip
def test_the_model_is_a_word_or_a_flag(parser: Parser, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()
    assert parse(parser, [*words, "smollm2"])["model"] == "smollm2"
    assert parse(parser, [*words, "--model", "smollm2"])["model"] == "smollm2"
    assert parse(parser, [*words, "--threads", "3", "smollm2"])["threads"] == 3
    assert parse(parser, [*words, "smollm2", "-t", "3"])["model"] == "smollm2"
    if command != "run":
        with pytest.raises(SystemExit):
            parse(parser, [*words, "smollm2", "--model", "other"])
        assert "given twice, 'smollm2' and --model 'other'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # llama-cli and llama-server
        (["run", "m", "-c", "2048", "hi"], "unknown flag -c: write --max-model-len"),
        (["serve", "m", "--ctx-size", "2048"], "--ctx-size: write --max-model-len"),
        (["run", "m", "-n", "20", "hi"], "-n: write --max-tokens"),
        (["run", "m", "-ngl", "99", "hi"], "-ngl: leave it out: parlay runs on CPUs"),
        (["run", "m", "--temp", "0", "hi"], "--temp: write --temperature"),
        (["serve", "m", "--numa", "distribute"], "--numa: `taskset`"),
        (["serve", "m", "-md", "d.gguf"], "-md: write --speculative-config"),
        (["serve", "m", "--flash-attn", "on"], "--flash-attn: leave it out"),
        (["serve", "m", "-ctk", "q8_0"], "-ctk: write --kv-cache-dtype int8 for q8_0"),
        (["serve", "m", "--chat-template-file", "x"], "--chat-template-file: write --chat-template FILE"),
        # ollama
        (["serve", "m", "--num-ctx", "4096"], "--num-ctx: write --max-model-len"),
        (["run", "m", "--keepalive", "5m", "hi"], "--keepalive: leave it out"),
        (["run", "m", "--format", "json", "hi"], "--format: write --structured-outputs"),
        # vllm serve
        (["serve", "m", "--lora-modules", "a=b"], "--lora-modules: adapters are not supported"),
        (["serve", "m", "--ssl-keyfile", "k"], "--ssl-keyfile: TLS is a reverse proxy's business"),
        (["serve", "m", "--structured-outputs-backend", "xgrammar"], "structured outputs have one backend"),
        (["serve", "m", "--slots"], "there is no such endpoint"),
        (["serve", "m", "--enable-reasoning"], "leave it out: reasoning is parsed"),
        (["serve", "m", "--served-model-name", "a", "--port", "1", "b"], "unexpected argument 'b'"),
        (["bench", "latency", "m", "--batch_size", "1"], "--batch-size"),
        # what no other program has
        (["generate", "--promt", "x"], "unknown flag --promt; parlay generate --help"),
        (["run", "m", "--temprature", "0"], "did you mean '--temperature'?"),
        (["bench", "methods", "--batch-size", "1"], "did you mean '--batch-sizes'?"),
        (["generate", "smollm2", "hi"], "unexpected argument 'hi': generate takes one prompt, in quotes"),
        (["chat", "smollm2", "hi"], "`parlay run MODEL PROMPT` gives one answer"),
        # what other commands have instead
        (["serve", "m", "-n", "20"], "-n: requests set it; --generation-config DIR"),  # llama-server
        (["serve", "m", "--temp", "0"], "--temp: requests set it; --generation-config DIR"),  # llama-server
        (["serve", "m", "--repeat-penalty", "1"], "requests set it; --generation-config DIR"),
        (["serve", "m", "--top-k", "5"], "requests set it; --generation-config DIR"),
        (["serve", "m", "--mirostat", "2"], "there are temperature, top_k, top_p"),
        (["serve", "m", "--uds", "x"], "a reverse proxy's business"),
        (["serve", "m", "-O3"], "nothing is compiled"),
        (["serve", "m", "--speculative-config.method", "ngram"], "write the whole config as JSON"),
        (["generate", "-sys", "x"], "unknown flag -sys; parlay generate --help"),  # llama-cli
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_unknown_is_answered_in_a_line(
    parser: Parser, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[:2] == ["bench", "latency"]:  # which has this flag
        assert parse(parser, words)["batch_size"] == 1
        return
    with pytest.raises(SystemExit) as stopped:
        parse(parser, words)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said in error
    assert error.count("\n") == 1
    assert len(error) < 300
    own = " ".join(words[:2]) if words[0] == "bench" else words[0]
    assert f"parlay {own} --help lists the flags" in error


@pytest.mark.parametrize("name", bench.MOVED)
def test_a_benchmark_that_is_elsewhere(parser: Parser, name: str) -> None:
    for flags in ([], ["--help"], ["m", "--rounds", "3"]):
        with pytest.raises(ConfigError, match=r"python -m benchmarks\.\w+|`vllm bench serve` against `parlay serve`"):
            parse(parser, ["bench", name, *flags])


def test_an_answer_names_flags_that_exist(parser: Parser) -> None:
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices
    known = {flag for name in ("run", "serve", "chat") for flag in commands[name]._option_string_actions}
    written = {text.split()[1].rstrip(",") for text in _BY_FLAG.values() if text.startswith("write --")}
    assert written <= known
    assert len(_BY_FLAG) > 150
    # What is hidden because it changes nothing is suggested to nobody, and no wall of names is shown.
    assert "--worker-use-ray" not in near_flag("--worker-use-rai", [])
    assert near_flag("--xyz", [f"--a{i}" for i in range(11)]) == ""
    assert answer("--temperature") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # vLLM's documents: https://docs.vllm.ai/en/latest/cli/serve/ (--max-model-len)
        ("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("2m", 2_000_000), ("1M", 1 << 20), ("1g", 10**9),
        ("4096", 4096), ("1GB", 10**9), ("1.5GB", 1_500_000_000), ("1GiB", 1 << 30), ("512MiB", 512 << 20),
        ("-1", -1),
    ],
)  # fmt: skip
def test_numbers_with_a_unit(text: str, value: int, parser: Parser) -> None:
    assert _int(text) == value
    assert parse(parser, ["serve", "--max-model-len", text])["max_model_len"] == value
    assert parse(parser, ["run", f"--kv-cache-memory={text}"])["kv_cache_memory"] == value


@pytest.mark.parametrize("text", ["4.k", "k", "1.0001k5", "1.00001k", "0x10", "4kb5", "1e3", "1GiBs"])
def test_numbers_that_are_none(text: str, parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(parser, ["serve", "--max-model-len", text])
    assert "--max-model-len: " in capsys.readouterr().err


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_a_template_is_a_file_or_a_text(tmp_path: Path) -> None:
    file, empty, picture = tmp_path / "template_chatml.jinja", tmp_path / "empty.jinja", tmp_path / "a.png"
    file.write_text(CHATML)
    empty.write_text("You are helpful.")
    picture.write_bytes(b"\x89PNG\xff")
    assert read_template(None) is None
    assert read_template(CHATML) == CHATML
    assert read_template(str(file)) == CHATML
    for wrong, words in (
        ("tpl.jinja", "there is no such file"),  # vLLM: a path that does not exist
        ("chatml", "there is no such file"),  # llama.cpp: a name of a built-in template
        (str(tmp_path), "there is no such file"),
        ("x" * 5000, "cannot be read|no such file"),
        (str(empty), "so it is no template"),
        (str(picture), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_template(wrong)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ngram", "ngram"),
        ("none", "none"),
        ('{"method": "ngram"}', '{"method": "ngram"}'),
        ("tiny-code-eagle3", {"model": "tiny-code-eagle3"}),
        ("./my-head", {"model": "./my-head"}),
        ("heads/smollm2-eagle3", {"model": "heads/smollm2-eagle3"}),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", {"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}),
    ],
)
def test_a_head_by_its_path_or_name(text: str, meant: object) -> None:
    assert read_speculation(text) == meant


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("{method: ngram}", '\'{"method": "ngram"}\''),  # the shell took the quotes
        ("{'method': 'ngram', 'num_speculative_tokens': 3}", '\'{"method": "ngram", "num_speculative_tokens": 3}\''),
        ('{"method": "ngram"', '"num_speculative_tokens": 5}\''),
        ("{", '\'{"method": "ngram"'),
        ("[{method: ngram}, {model: x}", '\'{"method": "ngram"'),
    ],
)
def test_json_with_a_mistake_is_shown_right(text: str, advice: str) -> None:
    with pytest.raises(ConfigError, match="not valid JSON; write ") as error:
        read_speculation(text)
    assert advice in str(error.value)


def test_the_command_says_what_it_reads_from_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for name in ("PARLAY_THREADS", "PARLAY_LOG", "PARLAY_ISA", "PARLAY_MEMORY", "PARLAY_API_KEY", "PARLAY_FLAG_"):
        assert name in said
