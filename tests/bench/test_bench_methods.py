"""`bench methods`: its cases, turns, rows and files, not how fast anything is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from parlay.bench import methods
from parlay.bench.contenders import contenders, engines
from parlay.bench.heatmap import draw_heatmap
from parlay.bench.methods import gather, measure, turns_of
from parlay.bench.options import MethodsOptions
from parlay.bench.protocol import Prefix
from parlay.cli.main import main
from parlay.config import SpeculativeConfig
from parlay.config.speculative import AUTO, TreeShape
from parlay.errors import CapacityError, ConfigError, ModelError
from parlay.llm import LLM
from parlay.proposers.select import weightless

CELL = {"temperature": 0.0, "precise": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("methods") / "target", scale=2.0, max_position_embeddings=1024)


@pytest.fixture
def options(model: Path, tmp_path: Path) -> MethodsOptions:
    """Eight prompts of a file, of which every turn asks two."""
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"one two three {i} one two"}) + "\n" for i in range(8)))
    return MethodsOptions(
        model=str(model),
        prompts=(path,),
        methods=("ngram",),
        lengths="fixed",
        batch_sizes=(2,),
        temperatures=(0.8,),
        max_tokens=6,
        turns=6,
    )


@pytest.fixture
def one_batch_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_TURN", 0.0)


def quiet(label: str) -> None:
    """Say nothing."""


@pytest.mark.usefixtures("one_batch_a_turn")
def test_cases_turns_and_passes(options: MethodsOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain runs once a turn; four turns ask all prompts, then there are new engines and new seeds."""
    asked: list[tuple[int, str, list[Any]]] = []
    real, known = LLM.generate, list[LLM]()

    def generate(self: LLM, prompts: Any, params: Any, **more: Any) -> Any:
        if self not in known:
            known.append(self)
        seeds = [one.seed for one in params] if params[0].max_tokens == 6 else []
        asked.append((known.index(self), self.engine.methods[-1], seeds))
        return real(self, prompts, params, **more)

    monkeypatch.setattr(LLM, "generate", generate)
    # Warm-up asks as much but without its prompts' seeds; it is told apart by coming first in an engine's life.
    monkeypatch.setattr(methods, "_warm_up", lambda llm, case: 1.0)
    plain, ngram = measure(options, None, quiet)
    assert [seeds for _, method, seeds in asked if method == "none"] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
        [8, 9],
        [10, 11],
    ]
    assert [method for _, method, _ in asked] == ["none", "ngram", "ngram", "none"] * 3
    assert [engine for engine, method, _ in asked if method == "ngram"] == [1, 1, 1, 1, 3, 3]
    assert (plain["method"], ngram["method"]) == ("plain", "ngram")
    assert plain["turns"] == ngram["turns"] == len(ngram["seconds"]) == 6
    assert plain["passes"] == 2
    assert plain["speed_up"] == plain["decode_speed_up"] == plain["acceptance_length"] == 1
    assert plain["interval"] is ngram["interval"] is None
    assert not ngram["precise"]  # of so few turns none is
    assert ngram["same_tokens"]
    assert ngram["workload"] == "asked"
    assert (ngram["batch"], ngram["temperature"]) == (2, 0.8)
    assert ngram["step_ms"]["forward"] > 0


def test_a_turn_lasts_long_enough(options: MethodsOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch takes a sixth of a second, three make a turn; the rest of a pass is asked in the next one."""
    monkeypatch.setattr(methods, "_warm_up", lambda llm, case: 1 / 6)
    seconds = []
    for turns in (1, 2):
        plain, _ = measure(replace(options, turns=turns), None, quiet)
        seconds.append(plain["passes"])
    assert seconds == [1, 2]


@pytest.mark.usefixtures("one_batch_a_turn")
def test_an_agents_loop_is_asked_to_its_end(options: MethodsOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workloads stop as soon as intervals are narrow."""
    monkeypatch.setattr(methods, "_warm_up", lambda llm, case: 1.0)
    monkeypatch.setattr("parlay.bench.paired.LEAST_TURNS", 3)
    asked = replace(options, precision=1e9, turns=40, batch_sizes=(1,), prefixes=16, methods=("ngram",))
    found = {}
    for name, turns in (("random", 40), ("agent", 40), ("agent", 10)):
        plain, ngram = measure(replace(asked, workloads=(name,), prompts=(), turns=turns), None, quiet)
        found[name, turns] = plain["turns"], ngram["passes"], ngram["precise"]
    assert found == {("random", 40): (3, 1, True), ("agent", 40): (16, 1, True), ("agent", 10): (10, 1, False)}


def test_turns_of_a_pass() -> None:
    prompts = [Prefix(i, (i,)) for i in range(7)]
    first = [[p.number for p in turn] for turn in turns_of(prompts, 3, 0)]
    second = [[p.number for p in turn] for turn in turns_of(prompts, 3, 6)]
    assert first == [[0, 1, 2], [3, 4, 5]]
    assert second == [[6, 0, 1], [2, 3, 4]]
    assert [len(turn) for turn in turns_of(prompts, 7, 0)] == [7]


@pytest.mark.usefixtures("one_batch_a_turn")
def test_a_second_run_measures_only_what_is_missing(
    options: MethodsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, options = tmp_path / "rows.json", replace(options, turns=1)
    first = measure(options, output, quiet)
    said: list[str] = []
    assert measure(options, output, said.append) == first
    assert not said
    more = measure(replace(options, temperatures=(0.0, 0.8)), output, said.append)
    assert [(row["temperature"], row["session"]) for row in more] == [(0.8, 0), (0.8, 0), (0.0, 1), (0.0, 1)]
    assert all("temperature 0:" in label for label in said)
    before = output.read_text()
    with pytest.raises(ConfigError, match="was measured with turns 1, here 2"):
        measure(replace(options, turns=2), output, quiet)
    asked = options.prompts[0].read_text()
    options.prompts[0].write_text(asked.replace("one", "four"))
    with pytest.raises(ConfigError, match="with other prompts of asked"):
        measure(options, output, quiet)
    options.prompts[0].write_text(asked)
    # Other weights where the same name was: the numerics id tells.
    write_llama(Path(options.model), seed=3, max_position_embeddings=1024)
    with pytest.raises(ConfigError, match="was measured with numerics"):
        measure(replace(options, temperatures=(0.5,)), output, quiet)
    assert output.read_text() == before


def test_another_token_is_noticed(
    options: MethodsOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = LLM.generate

    def wrong(self: LLM, prompts: Any, params: Any, **more: Any) -> Any:
        return real(self, prompts if self.engine.methods[-1] == "none" else [[1, 2]] * len(prompts), params, **more)

    monkeypatch.setattr(LLM, "generate", wrong)
    arguments = ["bench", "methods", "--model", options.model, "--prompts", str(options.prompts[0])]
    assert main([*arguments, "--methods", "ngram", "--batch-sizes", "2", "--max-tokens", "6", "--turns", "1"]) == 1
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["same_tokens"] for row in rows] == [True, False] * 2


def test_the_command(
    options: MethodsOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plot, output = tmp_path / "plot.png", tmp_path / "rows.json"
    arguments = ["bench", "methods", "--model", options.model, "--workloads", "random", "--prefixes", "4"]
    arguments += ["--methods", "ngram", "--batch-sizes", "2", "4", "--temperatures", "0", "--turns", "1"]
    arguments += ["--minutes", "0.5", "--precision", "0.1", "--lengths", "fixed", "--num-speculative-tokens", "2"]
    arguments += ["--output", str(output), "--plot", str(plot)]
    assert main(arguments) == 0
    *table, last = capsys.readouterr().out.strip().splitlines()
    assert sum("ngram" in line for line in table) == 2
    rows = [line for line in table if "random" in line or "workload" in line]
    assert max(map(len, rows)) <= 80
    assert sum("(1 turn)" in line for line in rows) == 4, "one ratio has no interval"
    assert all(row["interval"] is None for row in json.loads(last)["rows"])
    found = json.loads(last)
    assert [(row["batch"], row["method"]) for row in found["rows"]] == [
        *((2, "plain"), (2, "ngram")),
        *((4, "plain"), (4, "ngram")),
    ]
    assert {row["workload"] for row in found["rows"]} == {"random"}
    assert plot.read_bytes().startswith(b"\x89PNG")
    kept = json.loads(output.read_text())["rows"]
    assert found["provenance"]["numerics"] == [kept[0].pop("numerics")]
    assert kept[0] == found["rows"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "result.pdf"], "a plot is a .png file"),
        (["--output", "rows.txt"], "an output is a .json file"),
        (["--precision", "0"], "precision must be a number above 0, not 0.0"),
        (["--minutes", "inf"], "minutes must be a number above 0, not inf"),
        (["--temperatures", "-1"], "a temperature must be at least 0"),
        (["--workloads", "completions"], "unknown workload 'completions' (did you mean 'completion'?)"),
        (["--workloads", "edit"], "is in tiny-code's tokens"),
        (["--methods", "ngrams"], "unknown method 'ngrams' (did you mean 'ngram'?)"),
        (["--methods", "eagle3"], "has no checkpoint for"),
        (["--draft", "eagle4=x"], "unknown method 'eagle4'"),
        (["--draft", "eagle3=/no/such/head"], "there is no model '/no/such/head'"),
        (["--draft", "ngram=/no/such/head"], "unknown ngram option 'model'"),
        (["--draft", "medusa=a", "--draft", "medusa=b"], "names a method twice"),
        (["--prompts", "/no/such/file.jsonl"], "cannot be read"),
        (["--dataset", "/no/such/file.jsonl"], "cannot be read"),
        (["--prefixes", "4", "--batch-sizes", "8"], "agent has 4 prompts, too few for a batch of 8"),
    ],
    ids=str,
)
def test_mistakes_come_before_measuring(
    arguments: list[str], words: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [] if "--prefixes" in arguments else ["--prefixes", "16"]
    assert main(["bench", "methods", "--model", str(model), *quick, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_what_is_asked_of_whom(model: Path, options: MethodsOptions, tmp_path: Path) -> None:
    def names(**changed: Any) -> list[str]:
        return [one.name for one in gather(MethodsOptions(prefixes=16, **changed))]

    assert names() == ["completion"]
    assert names(model=str(model)) == ["agent", "random"]
    assert names(model=str(model), prompts=options.prompts, batch_sizes=(1,)) == ["asked"]
    assert names(model=str(model), prompts=options.prompts, workloads=("random",), batch_sizes=(1,)) == [
        "random",
        "asked",
    ]
    asked, random = gather(replace(options, workloads=("random",)))[::-1]
    assert (asked.max_tokens, asked.ignore_eos) == (6, False)
    assert (random.max_tokens, random.ignore_eos) == (32, True)
    with pytest.raises(ConfigError, match="would be called 'asked' like another workload"):
        gather(replace(options, prompts=options.prompts * 2))
    copy = tmp_path / "agent.jsonl"
    copy.write_text('{"prompt": "a"}')
    with pytest.raises(ConfigError, match="would be called 'agent'"):
        gather(replace(options, prompts=(copy,)))


def test_contenders_of_another_model(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = sorted([*weightless(), "self"])
    assert list(contenders(str(model), None)) == ["none", AUTO, *own]
    assert not caplog.records
    assert list(contenders(str(model), 3, ("suffix", "ngram"))) == ["none", "suffix", "ngram"]
    draft = write_llama(tmp_path / "draft", seed=1, num_hidden_layers=1)
    found = contenders(str(model), 3, (), {"draft_model": str(draft)})
    assert list(found) == ["none", AUTO, "auto+draft_model", *sorted([*own, "draft_model"])]
    assert found["draft_model"].options == {"model": str(draft)}
    assert found["draft_model"].num_speculative_tokens == 3
    stranger = write_llama(tmp_path / "stranger", seed=1, num_hidden_layers=1, vocab_size=400)
    with pytest.raises(ModelError):
        contenders(str(model), 3, (), {"draft_model": str(stranger)})


def test_engines_that_do_not_fit_side_by_side(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1 << 34, 1 << 20])
    monkeypatch.setattr("parlay.env.available_memory", lambda: next(free))
    with pytest.raises(
        CapacityError, match=r"the engine for ngram does not fit beside the 1 before it .*fewer methods"
    ):
        engines(str(model), contenders(str(model), None, ("ngram",)), 1)


def test_auto_chooses_its_lengths(model: Path) -> None:
    found = contenders(str(model), None, (AUTO,))
    assert list(found) == ["none", AUTO]
    assert found[AUTO].lengths == "goodput"


def test_the_heat_map(tmp_path: Path) -> None:
    rows = [
        CELL | {"workload": w, "batch": b, "method": m, "speed_up": s, "interval": [0.9 * s, 1.1 * s]}
        for w in ("edit", "agent")
        for b in (1, 8)
        for m, s in (("plain", 1.0), ("ngram", 2.5), ("suffix", 0.1 * b))
        if (w, m) != ("edit", "suffix")
    ]
    draw_heatmap(tmp_path / "map.png", "title", rows)
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_methods_that_guess_together(model: Path, tmp_path: Path) -> None:
    draft = str(write_llama(tmp_path / "draft", seed=1, num_hidden_layers=1))

    def found(*names: str) -> dict[str, SpeculativeConfig]:
        return contenders(str(model), 3, names, {"draft_model": draft})

    both = found("suffix+draft_model", "auto+draft_model", "suffix")
    assert list(both) == ["none", "suffix+draft_model", "auto+draft_model", "suffix"]
    union = both["suffix+draft_model"]
    assert [(one.method, one.num_speculative_tokens) for one in union.several] == [("suffix", 3), ("draft_model", 3)]
    automatic = both["auto+draft_model"]
    assert [(one.method, one.options) for one in automatic.several] == [("draft_model", {"model": draft}), (AUTO, {})]
    # A shape would be refused by whoever has no weights.
    assert list(engines(str(model), both, 1, tree=TreeShape(2, 3))) == list(both)
    for names, words in (
        ("suffix+suffix", "'suffix' is no part of 'suffix\\+suffix'; name methods that draft, each of them once"),
        ("none+suffix", "'none' is no part of"),
        ("suffix+sufix", "unknown method 'sufix' .did you mean 'suffix'"),
        ("suffix+eagle3", "the method 'eagle3' has no checkpoint for"),
    ):
        with pytest.raises(ConfigError, match=words):
            found(names)


def test_the_row_of_methods_that_guess_together(model: Path, options: MethodsOptions, tmp_path: Path) -> None:
    draft = str(write_llama(tmp_path / "draft", seed=1, num_hidden_layers=1))
    asked = replace(options, methods=("ngram+draft_model",), drafts={"draft_model": draft}, temperatures=(0.0,))
    rows = measure(asked, None, quiet)
    assert [(row["method"], row["same_tokens"]) for row in rows] == [("plain", True), ("ngram+draft_model", True)]
