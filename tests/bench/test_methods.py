"""`parlay bench methods`: its cases, repetitions, rows and files, not how fast anything is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from parlay.bench import methods
from parlay.bench.contenders import budgeted, contenders, engines
from parlay.bench.methods import gather, measure, pieces_of
from parlay.bench.options import MethodsOptions
from parlay.bench.plots import draw_ratios
from parlay.bench.workloads import Prefix
from parlay.cli.main import main
from parlay.config import SpeculativeConfig
from parlay.config.speculative import AUTO, TreeShape
from parlay.errors import CapacityError, ConfigError, ModelError
from parlay.llm import LLM
from parlay.proposers.select import weightless

SHAPE: dict[str, Any] = {"scale": 2.0, "max_position_embeddings": 1024, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("methods")
    return str(write_llama(folder / "one", **SHAPE)), str(write_llama(folder / "two", seed=1, **SHAPE))


@pytest.fixture
def options(models: tuple[str, str], tmp_path: Path) -> MethodsOptions:
    """Eight prompts of a file, two in every repetition."""
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"one two three {i} one two"}) + "\n" for i in range(8)))
    return MethodsOptions(
        models=models[:1],
        prompts=(path,),
        methods=("ngram",),
        lengths="fixed",
        batch_sizes=(2,),
        temperatures=(0.8,),
        max_tokens=6,
        repetitions=1,
    )


@pytest.fixture
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a warm-up, a repetition has one batch."""
    monkeypatch.setattr(methods, "_warm_up", lambda llm, case: 1.0)


def quiet(label: str) -> None:
    """Say nothing."""


def contender(row: dict[str, Any]) -> tuple[str, str, int | None]:
    return Path(row["model"]).name, row["method"], row["budget"]


@pytest.mark.usefixtures("one_batch")
def test_cases_repetitions_and_passes(options: MethodsOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain runs once a repetition; four run all prompts, then there are new engines and new seeds."""
    calls: list[tuple[int, str, list[Any]]] = []
    real, known = LLM.generate, list[LLM]()

    def generate(self: LLM, prompts: Any, params: Any, **more: Any) -> Any:
        if self not in known:
            known.append(self)
        calls.append((known.index(self), self.engine.methods[-1], [one.seed for one in params]))
        return real(self, prompts, params, **more)

    monkeypatch.setattr(LLM, "generate", generate)
    plain, ngram = measure(replace(options, repetitions=6), None, quiet)
    assert [seeds for _, method, seeds in calls if method == "none"] == [[i, i + 1] for i in range(0, 12, 2)]
    assert [method for _, method, _ in calls] == ["none", "ngram", "ngram", "none"] * 3
    assert [engine for engine, method, _ in calls if method == "ngram"] == [1, 1, 1, 1, 3, 3]
    assert (plain["method"], ngram["method"]) == ("plain", "ngram")
    assert plain["repetitions"] == ngram["repetitions"] == len(ngram["seconds"]) == 6
    assert plain["passes"] == 2
    assert plain["speed_up"] == plain["decode_speed_up"] == plain["acceptance_length"] == 1
    assert plain["interval"] is ngram["interval"] is None
    assert not ngram["precise"]  # of so few repetitions none is
    assert ngram["same_tokens"]
    assert (ngram["workload"], ngram["batch"], ngram["temperature"]) == ("own", 2, 0.8)
    assert ngram["step_ms"]["forward"] > 0


def test_a_repetition_lasts_long_enough(options: MethodsOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch takes a sixth of a second, it has three; the rest of a pass belongs to the next one."""
    monkeypatch.setattr(methods, "_warm_up", lambda llm, case: 1 / 6)
    passes = [measure(replace(options, repetitions=n), None, quiet)[0]["passes"] for n in (1, 2)]
    assert passes == [1, 2]


@pytest.mark.usefixtures("one_batch")
def test_an_agents_loop_runs_to_its_end(options: MethodsOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workloads stop as soon as intervals are narrow."""
    monkeypatch.setattr("parlay.bench.repetitions.LEAST_REPETITIONS", 3)
    chosen = replace(options, precision=1e9, batch_sizes=(1,), prefixes=6, prompts=())
    found = {}
    for name, most in (("random", 40), ("agent", 40), ("agent", 4)):
        plain, ngram = measure(replace(chosen, workloads=(name,), repetitions=most), None, quiet)
        found[name, most] = plain["repetitions"], ngram["passes"], ngram["precise"]
    assert found == {("random", 40): (3, 1, True), ("agent", 40): (6, 1, True), ("agent", 4): (4, 1, False)}


def test_pieces_of_a_pass() -> None:
    prompts = [Prefix(i, (i,)) for i in range(7)]
    first, second = ([[p.number for p in piece] for piece in pieces_of(prompts, 3, start)] for start in (0, 6))
    assert first == [[0, 1, 2], [3, 4, 5]]
    assert second == [[6, 0, 1], [2, 3, 4]]
    assert [len(piece) for piece in pieces_of(prompts, 7, 0)] == [7]


@pytest.mark.usefixtures("one_batch")
def test_plain_decoding_runs_once_for_all_budgets(
    options: MethodsOptions, models: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No draft is above its budget, and with fixed lengths it has as many tokens as it may."""
    calls: list[tuple[str, str]] = []
    real = LLM.generate

    def generate(self: LLM, *arguments: Any, **more: Any) -> Any:
        calls.append((Path(self.engine.config.model).name, self.engine.methods[-1]))
        return real(self, *arguments, **more)

    monkeypatch.setattr(LLM, "generate", generate)
    labels: list[str] = []
    swept = replace(options, models=models, budgets=(1, 4), max_tokens=24, temperatures=(0.0,))
    rows = measure(swept, None, labels.append)
    assert calls == [(model, method) for model in ("one", "two") for method in ("none", "ngram", "ngram")]
    assert [contender(row) for row in rows] == [
        (model, *method) for model in ("one", "two") for method in (("plain", None), ("ngram", 1), ("ngram", 4))
    ]
    assert all(row["same_tokens"] for row in rows)
    assert len({row["numerics"] for row in rows}) == 2
    assert labels[-1] == "two: case 1 of 1, at most 10 min left: own, batch 2, temperature 0: repetition 1, ngram 4"
    assert max(len(row["accepted_per_position"]) for row in rows if row["budget"] == 1) == 1
    assert max(len(row["accepted_per_position"]) for row in rows) > 1


@pytest.mark.usefixtures("one_batch")
def test_a_second_run_measures_only_what_is_missing(
    options: MethodsOptions, models: tuple[str, str], tmp_path: Path
) -> None:
    """A model and a temperature may be added; but other budgets, methods, prompts or weights are refused."""
    own = write_llama(tmp_path / "own", **SHAPE)
    output, alone = tmp_path / "rows.json", replace(options, models=(str(own),), budgets=(1, 4))
    first = measure(alone, output, quiet)
    labels: list[str] = []
    assert measure(alone, output, labels.append) == first
    assert not labels
    both = replace(alone, models=(str(own), models[1]))
    more = measure(both, output, labels.append)
    assert more[:3] == first
    assert {label.partition(":")[0] for label in labels} == {"two"}
    assert [row["session"] for row in more] == [0, 0, 0, 1, 1, 1]
    content = json.loads(output.read_text())
    assert content["kind"] == "parlay bench methods"
    assert content["methods"] == {model: ["none", "ngram 1", "ngram 4"] for model in both.models}
    assert set(content["workloads"]) == {f"own for {model}" for model in both.models}
    warmer = measure(replace(both, temperatures=(0.8, 0.0)), output, quiet)
    assert [(contender(row)[0], row["temperature"]) for row in warmer][6::3] == [("own", 0.0), ("two", 0.0)]
    before = output.read_text()
    for changed, words in (
        ({"budgets": (1, 2)}, r"was measured with budgets \[1, 4\], here \[1, 2\]; give the same"),
        ({"repetitions": 2}, "was measured with repetitions 1, here 2"),
        ({"methods": ("suffix",)}, "with other methods of .*own"),
        ({"max_tokens": 7}, "with max_tokens 6, here 7"),
    ):
        with pytest.raises(ConfigError, match=words):
            measure(replace(both, **changed), output, quiet)  # type: ignore[arg-type]
    prompts = options.prompts[0].read_text()
    options.prompts[0].write_text(prompts.replace("one", "four"))
    with pytest.raises(ConfigError, match="with other prompts of own for "):
        measure(both, output, quiet)
    options.prompts[0].write_text(prompts)
    # Other weights where the same name was: the numerics id tells.
    write_llama(own, seed=3, **SHAPE)
    with pytest.raises(ConfigError, match="was measured with numerics"):
        measure(replace(both, temperatures=(0.5,)), output, quiet)
    assert output.read_text() == before


@pytest.mark.usefixtures("one_batch")
def test_another_token_is_noticed(
    options: MethodsOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = LLM.generate

    def wrong(self: LLM, prompts: Any, params: Any, **more: Any) -> Any:
        return real(self, prompts if self.engine.methods[-1] == "none" else [[1, 2]] * len(prompts), params, **more)

    monkeypatch.setattr(LLM, "generate", wrong)
    arguments = ["bench", "methods", options.models[0], "--prompts", str(options.prompts[0]), "--turns", "1"]
    assert main([*arguments, "--methods", "ngram", "--batch-sizes", "2", "--max-tokens", "6"]) == 1
    captured = capsys.readouterr()
    rows = json.loads(captured.out.splitlines()[-1])["rows"]
    assert [row["same_tokens"] for row in rows] == [True, False] * 2
    assert "--turns is called --repetitions now" in captured.err


@pytest.mark.parametrize(("command", "several"), [("methods", False), ("sweep", True)])
def test_the_command(
    command: str,
    several: bool,
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """The table fits a terminal, everything is in the last line, and the file and the plot are written."""
    if several:
        request.getfixturevalue("one_batch")
    batches = (2,) if several else (2, 4)
    plot, output, page = tmp_path / "plot.png", tmp_path / "rows.json", tmp_path / "page.md"
    arguments = ["bench", command, *(["--models", *models, "--budgets", "1", "3"] if several else models[:1])]
    arguments += ["--workloads", "random", "--prefixes", "4", "--methods", "ngram"]
    arguments += [
        "--batch-sizes",
        *map(str, batches),
        "--temperatures",
        "0",
        "--repetitions",
        "1",
        "--minutes",
        "0.5",
    ]
    arguments += ["--precision", "0.1", "--lengths", "latency", "--output", str(output), "--plot", str(plot)]
    arguments += ["--report", str(page)]
    assert main(arguments) == 0
    *table, last = capsys.readouterr().out.strip().splitlines()
    found = json.loads(last)
    budgets = (1, 3) if several else (None,)
    names = ("one", "two") if several else ("one",)
    assert [(*contender(row), row["batch"]) for row in found["rows"]] == [
        (model, *method, batch)
        for model in names
        for batch in batches
        for method in (("plain", None), *(("ngram", budget) for budget in budgets))
    ]
    lines = [line for line in table if "random" in line or "workload" in line]
    assert sum("(1 run)" in line for line in lines) == len(found["rows"]), "one ratio has no interval"
    assert several or max(map(len, lines)) <= 80
    assert {row["workload"] for row in found["rows"]} == {"random"}
    assert plot.read_bytes().startswith(b"\x89PNG")
    content = json.loads(output.read_text())
    assert content["question"]["lengths"] == "latency"
    numerics = [row.pop("numerics") for row in content["rows"]]
    assert found["provenance"]["numerics"] == sorted(set(numerics))
    assert content["rows"] == found["rows"]
    text = page.read_text("utf-8")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    facts = {row[0]: row[1] for row in cells if len(row) == 2}
    assert facts["processor"] == found["provenance"]["cpu"]
    assert facts["numerics"].replace("`", "").split(", ") == sorted(set(numerics))
    titles, _, *measured = (row for row in cells if len(row) > 2)
    assert [row[titles.index("method")] for row in measured] == [row["method"] for row in found["rows"]]
    assert [row[titles.index("same")] for row in measured] == ["yes"] * len(found["rows"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "result.pdf"], "a plot must be a .png file"),
        (["--output", "rows.txt"], "an output must be a .json file"),
        (["--report", "/no/such/folder/page.md"], "a report must be a .md file in an existing directory"),
        (["--precision", "0"], "precision must be a number above 0, not 0.0"),
        (["--minutes", "inf"], "minutes must be a number above 0, not inf"),
        (["--temperatures", "-1"], "a temperature must be at least 0"),
        (["--budgets", "4", "2", "4"], "the budget 4 is given twice"),
        (["--models", "tiny-code", "tiny-code"], "the model 'tiny-code' is given twice"),
        (["--models", "tiny-code", "/no/such/model"], "there is no model '/no/such/model'"),
        (["--workloads", "completions"], "unknown workload 'completions' (did you mean 'completion'?)"),
        (["--workloads", "edit"], "is in tiny-code's tokens"),
        (["--methods", "ngrams"], "unknown method 'ngrams' (did you mean 'ngram'?)"),
        (["--methods", "eagle3"], "has no checkpoint for"),
        (["--draft", "eagle4=x"], "unknown method 'eagle4'"),
        (["--draft", "eagle3=/no/such/head"], "there is no model '/no/such/head'"),
        (["--draft", "ngram=/no/such/head"], "unknown ngram option 'model'"),
        (["--draft", "medusa=a", "--draft", "medusa=b"], "names a method twice"),
        (["--dataset", "/no/such/file.jsonl"], "cannot be read"),
        (["--prefixes", "4", "--batch-sizes", "8"], "agent has 4 prompts, too few for a batch of 8"),
    ],
    ids=str,
)
def test_mistakes_come_before_measuring(
    arguments: list[str],
    words: str,
    models: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later model's too: an hour may lie between the first one and it."""
    monkeypatch.setattr(methods, "engines", None)
    given = [] if "--models" in arguments else ["--models", "tiny-code", *models]
    quick = [] if "--prefixes" in arguments else ["--prefixes", "16"]
    assert main(["bench", "methods", *given, *quick, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_options_that_make_no_sense() -> None:
    for changed, words in (
        ({"budgets": (-1,)}, "at least 1 draft token, not -1"),
        ({"models": ()}, "there is no model"),
    ):
        with pytest.raises(ConfigError, match=words):
            MethodsOptions(**changed)  # type: ignore[arg-type]


def test_the_workloads_of_a_model(models: tuple[str, str], options: MethodsOptions, tmp_path: Path) -> None:
    """By default what all models can do: with other vocabularies than tiny-code's, what is made in any tokens."""
    counted: list[list[str]] = []

    def stop(*given: Any) -> None:
        counted.append([name.partition(" ")[0] for name in given[2]["workloads"]])
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "Record", stop)
        for names in (("tiny-code",), ("tiny-code", models[0])):
            with pytest.raises(InterruptedError):
                measure(MethodsOptions(models=names, prefixes=16, methods=("ngram",)), None, quiet)
    assert counted == [["completion"], ["agent", "random"] * 2]
    own, random = gather(replace(options, workloads=("random",)), models[0])[::-1]
    assert (own.name, own.max_tokens, own.ignore_eos) == ("own", 6, False)
    assert (random.name, random.max_tokens, random.ignore_eos) == ("random", 6, True)
    copy = tmp_path / "agent.jsonl"
    copy.write_text('{"prompt": "a"}')
    for paths, name in ((options.prompts * 2, "own"), ((copy,), "agent")):
        with pytest.raises(ConfigError, match=f"would be called '{name}' like another workload"):
            gather(replace(options, prompts=paths), models[0])


def test_contenders_of_another_model(
    models: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = sorted([*weightless(), "self"])
    assert list(contenders(models[0], None)) == ["none", AUTO, *own]
    assert not caplog.records
    assert list(contenders(models[0], 3, ("suffix", "ngram"))) == ["none", "suffix", "ngram"]
    assert contenders(models[0], None, (AUTO,))[AUTO].lengths == "goodput"
    found = contenders(models[0], 3, (), {"draft_model": models[1]})
    assert list(found) == ["none", AUTO, "auto+draft_model", *sorted([*own, "draft_model"])]
    assert found["draft_model"].options == {"model": models[1]}
    assert found["draft_model"].num_speculative_tokens == 3
    stranger = write_llama(tmp_path / "stranger", seed=1, num_hidden_layers=1, vocab_size=400)
    (stranger / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="cannot be compared"):
        contenders(models[0], 3, (), {"draft_model": str(stranger)})
    each = budgeted(models[0], (2, 8))
    assert list(each) == ["none", *(f"{name} {budget}" for name in (AUTO, *own) for budget in (2, 8))]
    assert (each["auto 8"].method, each["auto 8"].num_speculative_tokens) == (AUTO, 8)
    assert (each["suffix 2"].method, each["suffix 2"].num_speculative_tokens) == ("suffix", 2)
    assert budgeted(models[0], (), ("suffix",)) == contenders(models[0], None, ("suffix",))


def test_engines_that_do_not_fit_side_by_side(models: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1 << 34, 1 << 20])
    monkeypatch.setattr("parlay.env.available_memory", lambda: next(free))
    with pytest.raises(
        CapacityError, match=r"the engine for ngram does not fit into memory with the 1 before it .*fewer methods"
    ):
        engines(models[0], contenders(models[0], None, ("ngram",)), 1)


def test_methods_that_draft_together(models: tuple[str, str], options: MethodsOptions) -> None:
    drafts = {"draft_model": models[1]}

    def found(*names: str) -> dict[str, SpeculativeConfig]:
        return contenders(models[0], 3, names, drafts)

    both = found("suffix+draft_model", "auto+draft_model", "suffix")
    assert list(both) == ["none", "suffix+draft_model", "auto+draft_model", "suffix"]
    union = both["suffix+draft_model"]
    assert [(one.method, one.num_speculative_tokens) for one in union.several] == [("suffix", 3), ("draft_model", 3)]
    parts = [("draft_model", {"model": models[1]}), (AUTO, {})]
    assert [(one.method, one.options) for one in both["auto+draft_model"].several] == parts
    # A shape would be refused by whoever has no weights.
    assert list(engines(models[0], both, 1, tree=TreeShape(2, 3))) == list(both)
    for name, words in (
        ("suffix+suffix", "'suffix' cannot be a part of 'suffix\\+suffix'; give methods that draft, each once"),
        ("none+suffix", "'none' cannot be a part of"),
        ("suffix+sufix", "unknown method 'sufix' .did you mean 'suffix'"),
        ("suffix+eagle3", "the method 'eagle3' has no checkpoint for"),
    ):
        with pytest.raises(ConfigError, match=words):
            found(name)
    rows = measure(replace(options, methods=("ngram+draft_model",), drafts=drafts), None, quiet)
    assert [(row["method"], row["same_tokens"]) for row in rows] == [("plain", True), ("ngram+draft_model", True)]


def test_the_map_of_ratios(tmp_path: Path) -> None:
    """A panel a model, of which one lacks a method and one a case; and rows of older files, without a model."""
    rows = [
        {"model": m, "workload": w, "batch": b, "temperature": 0.0, "method": method, "budget": budget}
        | {"speed_up": s, "interval": [0.9 * s, 1.1 * s] if b == 1 else None, "precise": b == 1, "repetitions": 3}
        for m in ("a/one", "b/one", "two")
        for w in ("edit", "agent")
        for b in (1, 8)
        for method, budget, s in (("plain", None, 1.0), ("ngram", 1, 0.9), ("ngram", 8, 2.5), ("auto", None, 1.1))
        if (m, method) != ("two", "auto") and (m, w) != ("b/one", "agent")
    ]
    older = [{k: v for k, v in row.items() if k not in ("model", "repetitions")} | {"turns": 3} for row in rows[:8]]
    for name, drawn in (("several", rows), ("older", older), ("plain", [r for r in rows if r["method"] == "plain"])):
        draw_ratios(tmp_path / f"{name}.png", "title", drawn)
    sizes = {file.stem: file.stat().st_size for file in tmp_path.iterdir()}
    assert sizes["several"] > sizes["older"] > 10_000
