"""The numerics id, the self-check at start, and what engines do where it does not hold to the bit."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from asking import Ask, assert_same, run
from checkpoints import write_llama
from conftest import MakeLLM
from kernels.breaking import OtherOrder
from kernels.conftest import ISAS

import parlay.engine.load
from parlay import LLM, SamplingParams
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model
from parlay.numerics import selfcheck
from parlay.numerics.identify import cases, inspect

ASKS = [Ask(tuple(range(i, 20 + 5 * i)), SamplingParams(max_tokens=8, seed=i, logprobs=2)) for i in range(5)]


def test_equal_ids_mean_equal_everything(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm()
    assert llm.numerics_id == llm.engine.numerics_id == str(llm.engine.numerics)
    assert llm.engine.numerics.exact
    assert llm.numerics_id.endswith("/exact")
    for name in ("float32", torch.__version__, select_kernels().name):
        assert name in llm.numerics_id
    assert make_llm(dtype="bfloat16").numerics_id != llm.numerics_id
    assert make_llm("ngram", 3, max_num_seqs=4, block_size=8, seed=7).numerics_id == llm.numerics_id
    threads = torch.get_num_threads()
    monkeypatch.setenv("PARLAY_THREADS", "3")
    assert make_llm().numerics_id == llm.numerics_id, "the number of threads alters nothing"
    torch.set_num_threads(threads)


def test_other_weights_or_config_are_another_id(tmp_path: Path) -> None:
    one = write_llama(tmp_path / "a" / "model", seed=1)
    ids = {LLM(str(one), max_model_len=32).numerics_id}
    same = tmp_path / "b" / "model"
    shutil.copytree(one, same)
    assert LLM(str(same), max_model_len=32).numerics_id in ids, "where it lies is no matter"
    ids.add(LLM(str(write_llama(same, seed=2)), max_model_len=32).numerics_id)
    ids.add(LLM(str(write_llama(same, seed=2, rms_norm_eps=1e-6)), max_model_len=32).numerics_id)
    assert len(ids) == 3


def test_other_arithmetic_is_another_id(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set()
    for kernels in (ReferenceKernels("float32"), ReferenceKernels("rows")):
        kernels.name = "same name"
        monkeypatch.setattr(parlay.engine.load, "select_kernels", lambda device, longest, k=kernels: k)
        monkeypatch.setattr("parlay.numerics.kernel_choice.env.cache_dir", lambda: None)
        ids.add(make_llm(dtype="bfloat16").numerics_id)
    assert len(ids) == 2


def test_the_id_is_logged(make_llm: MakeLLM, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "parlay"):
        llm = make_llm()
    assert llm.numerics_id in caplog.text


def test_the_check_runs_once(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = make_llm().numerics_id
    monkeypatch.setattr(selfcheck, "check", None)
    assert make_llm().numerics_id == expected


def test_the_models_own_shapes_are_checked() -> None:
    model = describe_model("tiny-code")
    found = {str(case) for case in cases(model, torch.bfloat16, limit=1 << 30)}
    assert {f"linear {k}x{n} bfloat16" for k, n in ((256, 512), (256, 256), (256, 1280), (640, 256))} < found
    assert {"logits 256x4096 bfloat16", "attention 4x2x64 bfloat16", "rms_norm 256 float32"} < found


def test_where_it_cannot_be_kept_the_engine_says_so(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = OtherOrder(ReferenceKernels("float32"), lambda rows: rows > 3)
    monkeypatch.setattr(parlay.engine.load, "select_kernels", lambda device, longest: broken)
    llm = make_llm()
    assert not llm.engine.numerics.exact
    assert llm.numerics_id.endswith("/up-to-floating-point")
    assert "THE SAME-TOKENS GUARANTEE DOES NOT HOLD TO THE BIT HERE" in caplog.text
    assert len(run(llm, ASKS)) == len(ASKS), "it serves all the same"


def test_careful_kernels_replace_broken_ones(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    careful = ReferenceKernels("rows")
    broken = OtherOrder(ReferenceKernels("float32"), lambda rows: rows > 3, then=careful)
    monkeypatch.setattr(parlay.engine.load, "select_kernels", lambda device, longest: broken)
    llm = make_llm(dtype="bfloat16")
    assert llm.engine.numerics.exact
    assert "/reference-rows/" in llm.numerics_id
    assert "using the slower reference-rows" in caplog.text
    assert_same(run(llm, ASKS), [run(llm, [ask])[0] for ask in ASKS])


def test_inspecting_looks_at_more_and_finds_the_same_id(make_llm: MakeLLM) -> None:
    llm = make_llm()
    numerics, findings = inspect(llm.engine.config.model)
    assert numerics == llm.engine.numerics
    assert "logits 64x257 float32" in map(str, findings)
    assert not any(found.row_counts for found in findings.values())


PROGRAM = """
import json, sys
sys.path.insert(0, TESTS)
from pathlib import Path
from asking import Ask, essence, run
from checkpoints import write_llama
from parlay import LLM, SamplingParams
from parlay.kernels import tuning
import torch
tuning.measure = lambda kernels: tuning.Prefetching()
asks = [Ask(tuple(range(i, 20 + 5 * i)), SamplingParams(max_tokens=5, seed=i, logprobs=2)) for i in range(4)]
path = write_llama(Path(MODEL), dtype=torch.bfloat16, scale=7.0)
llm = LLM(str(path), max_model_len=64, enable_prefix_caching=False)
alone = [essence(run(llm, [ask])[0]) for ask in asks]
together = [essence(answer) for answer in run(llm, asks)]
print(json.dumps({"same": alone == together, "id": llm.numerics_id}))
"""


@pytest.mark.parametrize(
    ("environment", "kernels"),
    [
        # oneDNN multiplies bfloat16 without bfloat16 instructions: other orders for few rows than for many.
        ({"PARLAY_KERNELS": "reference", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "PARLAY_THREADS": "2"}, "reference"),
        pytest.param(
            {"PARLAY_KERNELS": "reference", "ONEDNN_MAX_CPU_ISA": "AVX2"}, "reference", marks=pytest.mark.soak
        ),
        pytest.param({"OMP_NUM_THREADS": "1", "PARLAY_THREADS": "4"}, "", marks=pytest.mark.soak),
        pytest.param(
            {"OMP_NUM_THREADS": "4", "PARLAY_THREADS": "1", "OMP_WAIT_POLICY": "ACTIVE"},
            "",
            marks=pytest.mark.soak if ISAS else (),
        ),
        *(
            pytest.param(
                {"PARLAY_ISA": isa, "PARLAY_KERNELS": "native", "OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "ACTIVE"},
                f"native-{isa}",
                marks=() if isa == "baseline" else pytest.mark.soak,
            )
            for isa in ISAS
        ),
    ],
    ids=str,
)
def test_unusual_environments(tmp_path: Path, environment: dict[str, str], kernels: str) -> None:
    names = f"TESTS, MODEL = {str(Path(__file__).parents[1] / 'support')!r}, {str(tmp_path)!r}\n"
    ran = subprocess.run(
        [sys.executable, "-c", names + PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["same"]
    assert f"/{kernels}" in answer["id"]
    assert answer["id"].endswith("/exact")
    assert ("using the slower" in ran.stderr) == ("/reference-" in answer["id"])


@pytest.mark.skipif(not ISAS, reason="no native kernels")
def test_an_instruction_set_that_is_not_there() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "parlay.cli.main", "generate", "x", "--max-tokens", "1"],
        env={**os.environ, "PARLAY_ISA": "avx10", "PARLAY_KERNELS": "native"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("parlay: no native kernels for 'avx10' here (available: ")
    assert ran.stderr.count("\n") == 1
