"""`bench sweep`: models and budgets around the cases of `bench methods`, not how fast anything is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from parlay.bench import methods
from parlay.bench.contenders import budgeted, contenders
from parlay.bench.heatmap import draw_sweep
from parlay.bench.options import MethodsOptions, SweepOptions
from parlay.bench.sweep import measure
from parlay.cli.main import main
from parlay.config.speculative import AUTO
from parlay.errors import CapacityError, ConfigError
from parlay.llm import LLM


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("sweep")
    shape: dict[str, Any] = {"scale": 2.0, "max_position_embeddings": 1024, "num_hidden_layers": 1}
    return str(write_llama(folder / "one", **shape)), str(write_llama(folder / "two", seed=1, **shape))


@pytest.fixture
def options(models: tuple[str, str], tmp_path: Path) -> SweepOptions:
    """One turn of two prompts a case, two budgets."""
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"one two three {i} one two"}) + "\n" for i in range(2)))
    each = MethodsOptions(
        prompts=(path,), methods=("ngram",), batch_sizes=(2,), temperatures=(0.8,), max_tokens=6, turns=1
    )
    return SweepOptions(models=models, budgets=(1, 4), each=each)


@pytest.fixture(autouse=True)
def one_batch_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_warm_up", lambda llm, case: 1.0)


def quiet(label: str) -> None:
    """Say nothing."""


def places(rows: list[dict[str, Any]]) -> list[tuple[str, str, int | None]]:
    return [(Path(row["model"]).name, row["method"], row["budget"]) for row in rows]


def test_plain_decoding_runs_once_for_all_budgets(options: SweepOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    real = LLM.generate

    def generate(self: LLM, *arguments: Any, **more: Any) -> Any:
        asked.append((Path(self.engine.config.model).name, self.engine.methods[-1]))
        return real(self, *arguments, **more)

    monkeypatch.setattr(LLM, "generate", generate)
    said: list[str] = []
    rows = measure(options, None, said.append)
    assert asked == [(model, method) for model in ("one", "two") for method in ("none", "ngram", "ngram")]
    assert places(rows) == [
        *(("one", "plain", None), ("one", "ngram", 1), ("one", "ngram", 4)),
        *(("two", "plain", None), ("two", "ngram", 1), ("two", "ngram", 4)),
    ]
    assert all(row["same_tokens"] for row in rows)
    assert len({row["numerics"] for row in rows}) == 2
    assert said[-1] == "two: case 1 of 1, at most 10 min left: asked, batch 2, temperature 0.8: turn 1, ngram 4"


def test_no_draft_is_above_its_budget(options: SweepOptions) -> None:
    """With fixed lengths a draft has as many nodes as it may."""
    each = replace(options.each, lengths="fixed", max_tokens=24, temperatures=(0.0,))
    rows = measure(replace(options, models=options.models[:1], each=each), None, quiet)
    assert [len(row["accepted_per_position"]) for row in rows if row["budget"] == 1] == [1]
    assert max(len(row["accepted_per_position"]) for row in rows) > 1


def test_contenders_with_budgets(models: tuple[str, str]) -> None:
    found = budgeted(models[0], (2, 8))
    assert list(found) == [
        "none",
        "auto 2",
        "auto 8",
        "ngram 2",
        "ngram 8",
        "self 2",
        "self 8",
        "suffix 2",
        "suffix 8",
    ]
    assert (found["auto 8"].method, found["auto 8"].num_speculative_tokens) == (AUTO, 8)
    assert (found["suffix 2"].method, found["suffix 2"].num_speculative_tokens) == ("suffix", 2)
    assert budgeted(models[0], (), ("suffix",)) == contenders(models[0], None, ("suffix",))


def test_a_stopped_sweep_goes_on(options: SweepOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a model and a temperature more; but not with other budgets, methods or prompts."""
    output, only = tmp_path / "rows.json", replace(options, models=options.models[:1])
    first = measure(only, output, quiet)
    said: list[str] = []
    assert measure(only, output, said.append) == first
    assert not said
    both = measure(options, output, said.append)
    assert both[:3] == first
    assert {label.partition(":")[0] for label in said} == {"two"}
    assert [row["session"] for row in both] == [0, 0, 0, 1, 1, 1]
    kept = json.loads(output.read_text())
    assert kept["kind"] == "parlay bench sweep"
    assert kept["methods"] == {model: ["none", "ngram 1", "ngram 4"] for model in options.models}
    assert set(kept["workloads"]) == {f"asked for {model}" for model in options.models}
    warmer = replace(options.each, temperatures=(0.8, 0.0))
    more = measure(replace(options, each=warmer), output, quiet)
    assert [(name, row["temperature"]) for (name, *_), row in zip(places(more), more, strict=True)][6::3] == [
        ("one", 0.0),
        ("two", 0.0),
    ]
    before = output.read_text()
    for other, words in (
        (replace(options, budgets=(1, 2)), r"was measured with budgets \[1, 4\], here \[1, 2\]; give the same"),
        (replace(options, each=replace(options.each, methods=("suffix",))), "with other methods of .*one"),
        (replace(options, each=replace(options.each, max_tokens=7)), "with max_tokens 6, here 7"),
    ):
        with pytest.raises(ConfigError, match=words):
            measure(other, output, quiet)
    options.each.prompts[0].write_text('{"prompt": "four"}\n' * 2)
    with pytest.raises(ConfigError, match="with other prompts of asked for "):
        measure(options, output, quiet)
    assert output.read_text() == before
    with pytest.raises(ConfigError, match="is not what `parlay bench methods` writes"):
        methods.measure(replace(options.each, model=options.models[0]), output, quiet)


def test_a_file_of_one_model_goes_on_with_the_same_weights_only(options: SweepOptions, tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    model = write_llama(tmp_path / "own", max_position_embeddings=1024, num_hidden_layers=1)
    alone = replace(options, models=(str(model),))
    measure(alone, output, quiet)
    write_llama(model, seed=3, max_position_embeddings=1024, num_hidden_layers=1)
    with pytest.raises(ConfigError, match="was measured with numerics"):
        measure(replace(alone, each=replace(alone.each, temperatures=(0.5,))), output, quiet)
    assert len(measure(options, output, quiet)) == 9  # which are other models


def test_all_models_are_asked_the_same(options: SweepOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model alone is asked depends on its vocabulary."""
    asked: dict[str, list[str]] = {}

    def note(each: MethodsOptions, workloads: Any, *rest: Any, model: str) -> None:
        asked[model] = [one.name for one in workloads]

    monkeypatch.setattr("parlay.bench.sweep.measure_cases", note)
    each = MethodsOptions(prefixes=16, methods=("ngram",))
    for names, expected in (
        (("tiny-code",), ["completion"]),
        (("tiny-code", options.models[0]), ["agent", "random"]),
    ):
        measure(SweepOptions(models=names, each=each), None, quiet)
        assert asked == dict.fromkeys(names, expected)


def test_the_command(
    models: tuple[str, str], options: SweepOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, output = tmp_path / "plot.png", tmp_path / "rows.json"
    arguments = ["bench", "sweep", "--models", *models, "--prompts", str(options.each.prompts[0]), "--turns", "1"]
    arguments += ["--methods", "ngram", "--budgets", "1", "3", "--batch-sizes", "1", "2", "--temperatures", "0"]
    arguments += ["--lengths", "latency", "--max-tokens", "4", "--output", str(output), "--plot", str(plot)]
    assert main(arguments) == 0
    *table, last = capsys.readouterr().out.strip().splitlines()
    assert any(models[1] in line for line in table)  # nothing is cut where it is no terminal
    rows = json.loads(last)["rows"]
    assert places(rows) == [
        (model, *contender)
        for model in ("one", "two")
        for _ in (1, 2)
        for contender in (("plain", None), ("ngram", 1), ("ngram", 3))
    ]
    assert [row["batch"] for row in rows] == [1, 1, 1, 2, 2, 2] * 2
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert json.loads(output.read_text())["question"]["lengths"] == "latency"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "result.pdf"], "a plot is a .png file"),
        (["--output", "rows.txt"], "an output is a .json file"),
        (["--budgets", "4", "2", "4"], "the budget 4 is given twice"),
        (["--models", "tiny-code", "tiny-code"], "the model 'tiny-code' is given twice"),
        (["--models", "tiny-code", "/no/such/model"], "there is no model '/no/such/model'"),
        (["--workloads", "edit"], "is in tiny-code's tokens"),
        (["--methods", "eagle3"], "has no checkpoint for"),
        (["--draft", "medusa=a", "--draft", "medusa=b"], "names a method twice"),
        (["--temperatures", "-1"], "a temperature must be at least 0"),
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
    monkeypatch.setattr("parlay.bench.sweep.measure_cases", None)
    given = [] if "--models" in arguments else ["--models", "tiny-code", *models]
    assert main(["bench", "sweep", *given, "--prefixes", "16", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budgets", "0"], "'0' is not a number of at least 1"),
        (["--model", "tiny-code"], "unknown flag --model (did you mean '--models'?)"),
        (["--num-speculative-tokens", "4"], "unknown flag --num-speculative-tokens"),
    ],
    ids=str,
)
def test_flags_that_it_does_not_have(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "sweep", *arguments])
    assert words in capsys.readouterr().err


def test_a_plot_without_matplotlib(
    models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlay.bench.plot.find_spec", lambda name: None)
    monkeypatch.setattr("parlay.bench.sweep.measure", None)
    assert main(["bench", "sweep", "--models", models[0], "--plot", str(tmp_path / "plot.png")]) == 2
    assert "plots need matplotlib; pip install 'parlay[plot]'" in capsys.readouterr().err


def test_options_of_a_sweep() -> None:
    for changed, words in (
        ({"budgets": (0,)}, "a budget must be at least 1 node, not 0"),
        ({"budgets": (2, -1)}, "a budget must be at least 1 node, not -1"),
        ({"models": ()}, "a sweep has no models"),
    ):
        with pytest.raises(ConfigError, match=words):
            SweepOptions(**changed)


def test_engines_that_do_not_fit_side_by_side(options: SweepOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1 << 34, 1 << 34, 1 << 10])
    monkeypatch.setattr("parlay.env.available_memory", lambda: next(free))
    with pytest.raises(CapacityError, match=r"the engine for ngram 4 does not fit beside the 2 before it"):
        measure(options, None, quiet)


def test_the_heat_map(tmp_path: Path) -> None:
    """A panel a model, of which one lacks a method and one a case."""
    rows = [
        {"model": m, "workload": w, "batch": b, "temperature": 0.0, "method": method, "budget": budget}
        | {"speed_up": s, "interval": [0.9 * s, 1.1 * s], "precise": b == 1}
        for m in ("a/one", "b/one", "two")
        for w in ("edit", "agent")
        for b in (1, 8)
        for method, budget, s in (("plain", None, 1.0), ("ngram", 1, 0.9), ("ngram", 8, 2.5), ("auto", None, 1.1))
        if (m, method) != ("two", "auto") and (m, w) != ("b/one", "agent")
    ]
    draw_sweep(tmp_path / "map.png", "title", rows)
    assert (tmp_path / "map.png").stat().st_size > 10_000
    draw_sweep(tmp_path / "plain.png", "title", [row for row in rows if row["method"] == "plain"])
