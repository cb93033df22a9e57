"""`parlay verify`: what it says, and when it fails."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from checkpoints import write_llama
from kernels.breaking import OtherOrder

import parlay.engine.load
import parlay.numerics.identify
from parlay import LLM, SamplingParams
from parlay.cli.main import main
from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kv.prefix import block_hash
from parlay.proposers.select import embedded_configs
from parlay.same_tokens import offline
from parlay.same_tokens.difference import ComparedAnswer, first_difference
from parlay.sampling.sampler import token_logprobs
from parlay.sampling.seeds import mix
from parlay.types.draft import Draft
from parlay.types.draft_tree import children, depths
from parlay.types.output import CompletionOutput, Logprob

FEW = ("none", "eagle3")  # plain decoding and a head, beside tokens alone; `draft_model` and `ngram` have tests below


@pytest.fixture(scope="module")
def inspected() -> Any:
    return parlay.numerics.identify.inspect("tiny-code")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, inspected: Any) -> None:
    """The full self-check of the embedded model has run, which takes seconds."""
    monkeypatch.setattr(parlay.numerics.identify, "inspect", lambda *model, **options: inspected)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("kinds", [offline.QUICK, pytest.param(tuple(offline.KINDS), marks=pytest.mark.soak)])
def test_the_embedded_model(
    kinds: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite verifies a few of the methods that the command verifies."""
    assert {*offline._all_methods()} == {*embedded_configs(), "auto", offline.UNION}
    names = FEW if kinds == offline.QUICK else embedded_configs()
    chosen = {name: config for name, config in embedded_configs().items() if name in names}
    monkeypatch.setattr(offline, "embedded_configs", lambda: chosen)
    junit = tmp_path / "verify.xml"
    quick = ["--quick"] if kinds == offline.QUICK else []
    assert main(["verify", *quick, "--max-tokens", "6", "--draws", "300", "--json", "--junit", str(junit)]) == 0
    text, _, line = capsys.readouterr().out.rstrip().rpartition("\n")
    result = json.loads(line)
    numerics = LLM(max_model_len=64).numerics_id
    assert result["provenance"]["numerics"] == [numerics]
    assert {"cpu", "threads", "torch", "instruction_sets", "environment"} <= set(result["provenance"])
    assert text.startswith(numerics)
    assert "the same-tokens guarantee holds here" in text
    assert result["holds"]
    assert all(check["same"] for check in result["checks"])
    assert len(result["checks"]) > 6
    rows = result["rows"]
    methods = {"plain", "auto", offline.UNION, *chosen} - {"none"}
    ways = ("alone", "together", "in chunks", "from the cache", "preempted", "switched")
    completed = [row for row in rows if "tokens" in row]
    assert {(r["method"], r["way"], r["parameters"]) for r in completed} == {
        (method, way, kind) for method in methods for way in ways for kind in kinds
    }
    assert all(r["same"] and r["difference"] is None for r in rows)
    for method in methods - {"plain"}:
        right = {
            way for way in ways if any(r["accepted"] for r in completed if (r["method"], r["way"]) == (method, way))
        }
        assert right >= set(ways[2:]), method  # where lengths are fixed; elsewhere they depend on the machine
    tests = [row for row in rows if row["way"] == "sampled distribution"]
    assert {row["method"] for row in tests} == methods
    assert all(row["draws"] >= 100 and row["cells"] > 1 for row in tests)
    assert all((row["accepted"] > 0) == (row["method"] != "plain") for row in tests), (
        "the distribution of accepted draft tokens"
    )
    suite = ElementTree.parse(junit).getroot()
    assert suite.get("tests") == str(len(result["checks"]) + len(rows))
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "0")


def test_a_model_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_llama(tmp_path / "own", scale=7.0, calm=0.2))
    assert main(["verify", "--model", model, "--quick", "--max-tokens", "6", "--draws", "0"]) == 0
    out = capsys.readouterr().out
    assert "own-" in out
    assert "draft_model was left out" in out, "the embedded draft model has another vocabulary"
    assert "ngram" in out
    assert "{" not in out.splitlines()[-1]
    draft = json.dumps({"method": "draft_model", "model": model, "num_speculative_tokens": 2})
    assert (
        main(
            ["verify", model, "--quick", "--max-tokens", "6", "--draws", "0", "--speculative-config", draft, "--json"]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert {row["method"] for row in rows} == {"plain", "draft_model"}
    assert sum(row.get("accepted", 0) for row in rows) > 0


@pytest.mark.parametrize("kind", ["from 4 rows", "of 45 rows"])
def test_broken_kernels_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where the start-up check sees the fault and where only the full one does."""

    def select(device: str = "cpu", longest: int = 0) -> Kernels:
        return OtherOrder(ReferenceKernels("float32"), lambda rows: rows > 3 if kind == "from 4 rows" else rows == 45)

    for module in (parlay.engine.load, parlay.numerics.identify):
        monkeypatch.setattr(module, "select_kernels", select)
    model = str(write_llama(tmp_path / "model", scale=7.0))
    flags = ["--quick", "--max-tokens", "4", "--draws", "0", "--speculative-config", "ngram", "--json"]
    if kind == "of 45 rows":  # no completion has so many
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text('{"prompt": "x"}')
        flags += ["--prompts", str(prompts)]
    assert main(["verify", model, *flags]) == 1
    *text, line = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert "the same-tokens guarantee does NOT hold here to the bit" in text[-1]
    assert not result["holds"]
    broken = [check for check in result["checks"] if not check["same"]]
    assert {check["case"].split()[0] for check in broken} == {"linear"}
    assert all(set(check["rows"]) >= ({45} if kind == "of 45 rows" else {4, 45, 1000}) for check in broken)
    if kind == "from 4 rows":
        assert text[0].endswith("/up-to-floating-point")
        *before, last = result["rows"]
        assert all(row.get("same", True) for row in before), "it ends at the first difference"
        assert (last["way"], last["same"]) == ("together", False)
        assert last["difference"].startswith("prompt ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no model 'nowhere'"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, not 0"),
        (["--draws", "-1"], "--draws must be at least 0, not -1"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--junit", "/nowhere/x.xml"], "--junit /nowhere/x.xml cannot be written: there is no such directory"),
        (["--speculative-config", '{"method": "ngrm"}'], "did you mean 'ngram'"),
    ],
)
def test_wrong_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_what_is_compared_of_a_completion() -> None:
    logprobs = ({5: Logprob(-1.0, 1, ""), 8: Logprob(-1.25, 2, "")}, {6: Logprob(-2.0000000000000004, 1, "")})
    one = offline.compared(CompletionOutput(0, "", (5, 6), ("target",) * 2, logprobs))
    assert one.tokens == (5, 6)
    assert one.likely == ({5: -1.0, 8: -1.25}, {6: -2.0000000000000004})
    assert one.logprobs[1] == [(6, (-2.0000000000000004).hex())]


def test_differences_are_found() -> None:
    """By how much the found token's logit was behind is said where both were reported."""
    one = ComparedAnswer("ab", ("a", "b"), (-1.0, -2.0), ({}, {"b": -2.0, "c": -2.25, "d": -3.0}))
    assert first_difference([one, one], [one, one]) is None
    for changes, words in (
        ({"tokens": ("a", "c")}, ", token 1: 'c' instead of 'b', whose logit is 0.25 away"),
        ({"tokens": ("a", "x")}, ", token 1: 'x' instead of 'b', whose logit is not among the highest"),
        ({"tokens": ("x", "b")}, ", token 0: 'x' instead of 'a'"),
        ({"logprobs": (-1.0, -2.0000000000000004)}, ", token 1: log-probabilities"),
        ({"text": "a", "tokens": ("a",)}, ", character 1: '', not 'b'"),
        ({"tokens": ("a",)}, ": 1 tokens instead of 2"),
    ):
        assert first_difference([one, replace(one, **changes)], [one, one]) == f"prompt 1{words}"


@pytest.mark.usefixtures("checked")
def test_own_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f(x):"}\n{"prompt": "class A"}\n')
    own = json.dumps({"method": "ngram"})
    command = ["verify", "--quick", "--draws", "0", "--prompts", str(prompts), "--speculative-config", own, "--json"]
    assert main(command) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    completed = [row for row in rows if "tokens" in row]
    assert {row["parameters"] for row in completed} == set(offline.QUICK)
    assert {row["tokens"] for row in completed} == {2 * 16}


@pytest.mark.usefixtures("checked")
def test_a_distribution_that_is_not_the_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds that repeat draw each token too often or too seldom."""
    real = SamplingParams

    def repeating(**given: Any) -> SamplingParams:
        return real(**given | ({"seed": given["seed"] % 7} if "seed" in given else {}))

    monkeypatch.setattr("parlay.same_tokens.sampled_distribution.SamplingParams", repeating)
    assert main(["verify", "--quick", "--max-tokens", "2", "--draws", "400", "--json"]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][-1]
    assert (last["method"], last["way"], last["same"]) == ("plain", "sampled distribution", False)
    assert last["difference"].startswith("chi-square ")


def any_child(draft: Draft) -> list[dict[int, int]]:
    """A walk that goes on to a draft token whatever the target has drawn."""

    class Eager(dict[int, int]):
        def get(self, token: int, default: Any = None) -> Any:
            return super().get(token, next(iter(self.values()), default))

    return [Eager(one) for one in children(draft)]


def depths_plus_one(draft: Draft) -> list[int]:
    """Noise of the position behind each draft token."""
    return [depth + 1 for depth in depths(draft)]


ARRIVALS = count()
PLANTED: dict[str, tuple[str, Any]] = {
    "a draft token is accepted whatever was drawn": ("parlay.verification.coupled.children", any_child),
    "noise of another position": ("parlay.verification.coupled.depths", depths_plus_one),
    "blocks shared by other texts": ("parlay.kv.table.block_hash", lambda parent, tokens: block_hash(parent, ())),
    "seeds that count arrivals": ("parlay.engine.engine.mix", lambda seed, j: mix(seed, j + next(ARRIVALS))),
    "log-probabilities of a batch": (
        "parlay.verification.coupled.token_logprobs",
        lambda kernels, row, token, top: token_logprobs(kernels, row * (1 + next(ARRIVALS) / 64), token, top),
    ),
}


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, wrong = PLANTED[fault]
    monkeypatch.setattr(place, wrong)
    own = json.dumps({"method": "ngram", "lengths": "fixed"})
    assert (
        main(["verify", "--quick", "--max-tokens", "10", "--draws", "0", "--speculative-config", own, "--json"]) == 1
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][-1]
    assert not last["same"]
    assert last["difference"].startswith("prompt ")


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("mode", "says"), [("rejection", "have the target's distribution"), ("typical", "are lossy, ")]
)
def test_classical_verification_tests_the_distribution_of_draft_tokens(
    mode: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fifty requests at once would have no drafts if lengths were chosen; and what is lossy is called so."""
    own = json.dumps({"method": "draft_model", "model": "tiny-code-draft", "verification": mode})
    main(["verify", "--quick", "--max-tokens", "4", "--draws", "120", "--speculative-config", own, "--json"])
    text, _, line = capsys.readouterr().out.rstrip().rpartition("\n")
    result = json.loads(line)
    assert (says if result["holds"] else "lossy, as it must be") in text
    assert [row["accepted"] > 0 for row in result["rows"] if row["way"] == "sampled distribution"][-1]


@pytest.mark.usefixtures("checked")
def test_a_classical_sampler_that_is_biased_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Draft tokens that are all accepted have the draft's distribution."""
    monkeypatch.setattr("parlay.verification.classical._log_ratio", lambda *of: 0.0)
    own = json.dumps({"method": "draft_model", "model": "tiny-code-draft", "verification": "rejection"})
    assert (
        main(["verify", "--quick", "--max-tokens", "2", "--draws", "600", "--speculative-config", own, "--json"]) == 1
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][-1]
    assert (last["method"], last["way"], last["same"]) == ("draft_model", "sampled distribution", False)
