"""The roofline: probes that do what they say, floors by hand, times that add up. No figure is judged here."""

import dataclasses
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from families import write_family

from benchmarks import roofline
from benchmarks.machine import Machine, Rates
from benchmarks.rig import RandomDrafts, Rig
from benchmarks.roofline import main
from benchmarks.timed_kernels import TimedKernels
from parlay.config.speculative import plain as plain_config
from parlay.errors import ConfigError
from parlay.explain.work import Work, linear_names, work_of
from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.select import select_kernels
from parlay.models.select import CausalModel, describe_model, load_model
from parlay.proposers.base import TargetInfo
from parlay.proposers.select import make_proposer
from parlay.types.draft import Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import Span

try:
    from parlay.kernels import _native

    ISAS = _native.isas()
except ImportError:
    ISAS = []

needs_native = pytest.mark.skipif(not ISAS, reason="no native kernels")
CONFIG = describe_model("tiny-code")
WINDOW = 256 * 1024


@pytest.fixture(params=ISAS or [pytest.param("", marks=needs_native)])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    _native.set_isa(request.param)
    yield request.param
    _native.set_isa(ISAS[0])
    _native.set_threads(1)


# --------------------------------------------------------------------------------------------------------- probes


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ahead", [0, 1024])
def test_a_read_reads_every_byte_once(isa: str, threads: int, ahead: int) -> None:
    _native.set_threads(threads)
    values = torch.zeros(5 * WINDOW // 4)
    assert _native.probe_read(values, ahead) == 0
    for at in (0, 15, 16, WINDOW // 16, WINDOW // 4 - 1, WINDOW, values.numel() - 1):
        values[at] += 1
        assert _native.probe_read(values, ahead) == values.sum()
    values.fill_(1)
    assert _native.probe_read(values, ahead) == values.numel()


@pytest.mark.parametrize("bf16", [False, True])
def test_multiplications_are_counted(isa: str, bf16: bool) -> None:
    _native.set_threads(2)
    one = _native.probe_multiply(bf16, 1)
    assert one > 0
    assert _native.probe_multiply(bf16, 7) == 7 * one


@needs_native
def test_rates() -> None:
    rates = Machine(size=1 << 21).rates()
    assert min(dataclasses.astuple(rates)) > 1e6


def test_the_slower_rate_makes_the_floor() -> None:
    rates = Rates(read=10.0, bf16=200.0, fp32=100.0)
    assert rates.seconds(20, 100, torch.bfloat16) == 2
    assert rates.seconds(20, 1000, torch.bfloat16) == 5
    assert rates.seconds(20, 1000, torch.float32) == 10


# ---------------------------------------------------------------------------------------------------------- floors


def span(start: int, tokens: int, nodes: int = 0, sample: bool = True) -> Span:
    draft = Draft.chain(range(nodes), "draft")
    return Span(0, tuple(range(tokens)), start, (), 0, SamplingParams(), draft=draft, sample=sample)


def test_work_of_a_plain_step() -> None:
    work = work_of(CONFIG, torch.bfloat16, [span(99, 1)])
    # 8 layers, hidden 256, 4 heads and 2 key heads of 64, inner 640; two bytes a weight, two operations a weight
    weights = {"qkv": 8 * 512 * 256, "out": 8 * 256 * 256, "gate up": 8 * 1280 * 256, "down": 8 * 256 * 640}
    weights["head"] = 4096 * 256
    for name, count in weights.items():
        assert work[name] == Work(2 * count, 2 * count)
    assert work["attention"] == Work(100 * 8 * 2 * 2 * 64 * 2, 100 * 8 * 4 * 64 * 4)
    assert set(work) == {*weights, "attention"}


def test_work_of_mixed_steps() -> None:
    work = work_of(CONFIG, torch.float32, [span(10, 1, nodes=2), span(0, 5, sample=False)])
    assert work["out"] == Work(4 * 8 * 256 * 256, 8 * 2 * 8 * 256 * 256)
    assert work["head"] == Work(4 * 4096 * 256, 3 * 2 * 4096 * 256)  # the prompt's piece needs no logits
    seen = (11 + 12 + 13) + (1 + 2 + 3 + 4 + 5)
    assert work["attention"] == Work((13 + 5) * 8 * 2 * 2 * 64 * 4, seen * 8 * 4 * 64 * 4)
    assert work_of(CONFIG, torch.float32, [span(0, 5, sample=False)])["head"] == Work()


def test_layers_of_one_shape_share_a_name() -> None:
    config = dataclasses.replace(CONFIG, intermediate_size=256)
    assert set(linear_names(config).values()) == {"qkv, gate up", "out, down"}
    weights = 8 * 256 * 256
    assert work_of(config, torch.bfloat16, [span(0, 1)])["out, down"] == Work(2 * 2 * weights, 2 * 2 * weights)


# ----------------------------------------------------------------------------------------------------------- times


def test_timed_kernels_offer_every_operation() -> None:
    timed, inner = TimedKernels(ReferenceKernels(), {}), ReferenceKernels()
    for name in {name for name in dir(Kernels) if not name.startswith("_")} | set(Kernels.__annotations__):
        assert callable(getattr(timed, name)) == callable(getattr(inner, name))


@needs_native
def test_calls_and_replays_are_timed_by_operation() -> None:
    timed = TimedKernels(select_kernels(force="native"), {(3, 8): "qkv"})
    kernels = timed.kernels
    x, weight, out = torch.ones(1, 8), kernels.pack_linear(torch.ones(3, 8)), torch.zeros(1, 3)

    def work() -> None:
        kernels.rms_norm(x, torch.ones(8), 1e-5, x)
        kernels.linear(x, weight, out)

    work()
    seconds = timed.take()
    assert set(seconds) == {"norm", "qkv"}
    assert min(seconds.values()) > 0
    assert out.tolist() == [pytest.approx([8.0] * 3, rel=1e-4)]
    assert timed.take() == {}
    replay = kernels.record(work)
    assert replay is not None
    timed.take()
    for value, expected in ((1.0, 8.0), (-5.0, -8.0)):
        x.fill_(value)
        replay()
        assert set(timed.take()) == {"norm", "qkv"}
        assert out.tolist() == [pytest.approx([expected] * 3, rel=1e-4)]
    assert TimedKernels(ReferenceKernels(), {}).record(work) is None


@pytest.fixture(scope="module")
def loaded() -> tuple[CausalModel, TimedKernels]:
    kernels = TimedKernels(select_kernels(), linear_names(CONFIG))
    return load_model(CONFIG, torch.bfloat16, 256, kernels.kernels), kernels


def test_steps_of_a_rig(loaded: tuple[CausalModel, TimedKernels]) -> None:
    plain = make_proposer(plain_config(), TargetInfo(CONFIG, torch.bfloat16, 256))
    for proposer, length, batch in ((plain, 0, 1), (plain, 0, 3), (RandomDrafts(4096), 4, 1)):
        rig = Rig(*loaded, proposer, length, batch, context=20, room=40, temperature=0.8)
        for _ in range(60):  # more than a request has room for
            sample = rig.decode()
            assert sample.rows == batch * (1 + length)
            assert min(sample.seconds.values()) >= 0
            assert sample.total == pytest.approx(sum(sample.seconds.values()))
        assert sample.work["attention"].size >= batch * 20 * 8 * 2 * 2 * 64 * 2
    sample = Rig(*loaded, plain, 0, 1, context=200, room=1, temperature=0.0).prefill()
    assert sample.rows == 200
    assert sample.work["attention"].flops == 200 * 201 / 2 * 8 * 4 * 64 * 4


@pytest.fixture
def small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little memory to read, since no rate is judged."""
    monkeypatch.setattr(roofline, "Machine", partial(Machine, 1 << 22))


@needs_native
@pytest.mark.usefixtures("small_probe")
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"method": "draft_model", "model": "tiny-code-draft", "num_speculative_tokens": 3}
    command = ["--rounds", "2", "--prompt", "64", "--speculative-config", json.dumps(config)]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = {row["step"]: row for row in result["rows"]}
    assert list(rows) == ["plain", "4 drafted", "8 drafted", "16 drafted", "batch 8", "draft_model", "prefill"]
    assert [row["rows"] for row in rows.values()][:5] == [1, 5, 9, 17, 8]
    assert rows["plain"]["ratio"] == 1
    for row in rows.values():
        assert sum(c["share"] for c in row["components"].values()) == pytest.approx(1)
        # The embedded model may stay in the caches, so its floor is not one in earnest.
        assert 0 < row["floor_ms"] < 10 * row["ms"]
        floored = {name for name, c in row["components"].items() if c["floor_ms"] is not None}
        assert floored == {"qkv", "out", "gate up", "down", "head", "attention"}
    assert rows["draft_model"]["components"]["drafting"]["ms"] > 0
    assert {entry["rate"] for entry in result["machine"]} == {"read", "bf16", "fp32"}
    assert all(0 < entry["median"] <= entry["best"] for entry in result["machine"])
    assert {"command", "commit", "cpu"} <= set(result["provenance"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--context", "2040"], "--context 2040 leaves no room within the model's 2048 positions; lower it"),
        (["--speculative-config", "{"], "not valid JSON"),
        (["--speculative-config", '{"method": "ngrams"}'], "did you mean 'ngram'"),
        (["--model", "tiny-cod"], "there is no model"),
    ],
)
def test_bad_options(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", *flags]) == 2
    assert message in capsys.readouterr().err


def test_without_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "parlay.kernels._native", None)
    monkeypatch.delattr("parlay.kernels._native", raising=False)
    with pytest.raises(ConfigError, match="need the native kernels"):
        Machine(size=1)


@pytest.mark.usefixtures("small_probe")
def test_recurrent_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What states take is a component of its own."""
    path = write_family(tmp_path / "model", "qwen3_5")
    assert main(["--model", str(path), "--rounds", "1", "--context", "16", "--prompt", "64"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert all(row["components"]["states"]["ms"] > 0 for row in rows)
    assert all(row["components"]["parts of linear layers"]["ms"] > 0 for row in rows)
