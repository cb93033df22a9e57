"""A target's states by transformers are the engine's, nearly; where they are not, the engine's are taken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training import write_target

from parlay.train import teacher as teachers
from parlay.train.accelerated import AcceleratedTarget, accelerate
from parlay.train.data import Text
from parlay.train.options import TrainOptions
from parlay.train.teacher import Teacher, TeacherBatch

CPU = torch.device("cpu")
IDS = torch.tensor([1, 5, 9, 40])


def make_texts() -> list[Text]:
    rng = np.random.default_rng(3)
    return [Text.of([1], rng.integers(0, 64, size).tolist()) for size in (4, 30, 17)]


def make_teacher(target: Path, accelerated: AcceleratedTarget | None, monkeypatch: pytest.MonkeyPatch) -> Teacher:
    """Return a teacher on a device that is taken for an accelerator, though it is none."""
    with monkeypatch.context() as patch:
        patch.setattr(teachers, "accelerate", lambda path, dtype, device: accelerated)
        patch.setattr(torch, "device", lambda name: CPU)
        return Teacher(TrainOptions(target=str(target), output="none", data="none", dtype="float32", device="cuda"))


@pytest.mark.parametrize("narrow", [False, True])
def test_lessons_are_those_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: bool) -> None:
    target = write_target(tmp_path)
    layers = (0, 1, 2)
    found: list[TeacherBatch] = []
    for accelerated in (None, AcceleratedTarget(target, torch.float32, CPU)):
        teacher = make_teacher(target, accelerated, monkeypatch)
        teacher.tap(layers)
        if narrow:
            teacher.restrict_vocabulary(IDS)
        found.append(teacher.batch(make_texts()))
    engines, other = found
    assert torch.equal(engines.tokens, other.tokens)
    assert torch.equal(engines.text, other.text)
    assert torch.equal(engines.best, other.best)
    for expected, given in zip(
        (engines.hidden, engines.target_probs, *engines.tapped),
        (other.hidden, other.target_probs, *other.tapped),
        strict=True,
    ):
        assert not torch.equal(expected, torch.zeros_like(expected))
        torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-3)


def test_other_states_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = write_target(tmp_path / "target")
    other = AcceleratedTarget(write_target(tmp_path / "other", seed=6), torch.float32, CPU)
    teacher = make_teacher(target, other, monkeypatch)
    assert "other hidden states" in caplog.text
    expected = make_teacher(target, None, monkeypatch).batch(make_texts())
    assert torch.equal(teacher.batch(make_texts()).hidden, expected.hidden)


def test_what_transformers_cannot_load_stays_on_the_cpu(tmp_path: Path, caplog: Any) -> None:
    assert accelerate(tmp_path, torch.float32, CPU) is None
    assert "stays on the CPU" in caplog.text
