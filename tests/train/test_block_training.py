"""Block drafters in training beside what is served, for targets of several kinds: what is written drafts the same."""

from pathlib import Path

import pytest
import torch
from families import write_family
from pieces import random_tokens
from training import options

from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.methods.dflash.proposer import Options as Served
from parlay.proposers.methods.dflash.proposer import Proposer
from parlay.proposers.methods.dflash.training import Options, Trainee
from parlay.train.data import Text
from parlay.train.save import save_head
from parlay.train.teacher import Teacher
from parlay.types.cache import StateCapacity
from parlay.types.params import SamplingParams
from parlay.types.plan import CatchUp, Span, Verdict

BLOCK, BLOCKS, SIZE = 4, 8, 8


@pytest.mark.parametrize("name", ["gemma2", "granite", "deepseekv3", "qwen3_5"])
def test_what_is_written_drafts_as_it_was_trained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output layers with caps and factors, latent attention, and states that come before recurrent layers."""
    path = write_family(tmp_path / "target", name, calm=0.3)
    teacher = Teacher(options(path, path, path, dtype="float32", max_model_len=128))
    torch.manual_seed(0)
    trainee = Trainee(Options(block_size=BLOCK, layers=(1, 2)), teacher, [])
    (tmp_path / "head").mkdir()
    save_head(tmp_path / "head", trainee, torch.float32, "", path)
    kernels, config = select_kernels(), describe_model(str(path))
    head = Proposer(Served(model=str(tmp_path / "head")), TargetInfo(config, torch.float32, 128))
    target = load_model(config, torch.float32, 128, kernels)
    head.load(Runtime(kernels, BLOCKS, SIZE, 128, target, (), StateCapacity(2, 2)))
    monkeypatch.setattr(head._expander.recorder, "_usable", False)
    scored, score = [], head.logits
    monkeypatch.setattr(head, "logits", lambda state: scored.append(score(state).clone()) or scored[-1])
    *before, newest = random_tokens(20, 3)
    batch = teacher.batch([Text.of([], before)])
    ask, params = CatchUp(unseen=tuple(before), follow=True, budget=BLOCK - 1), SamplingParams(temperature=0)
    span = Span(0, tuple(before), 0, tuple(range(BLOCKS)), 0, params, sample=True, remaining=99, catch_up=ask)
    (proposal,) = head.propose([span], [Verdict((newest,))], batch.hidden, torch.stack(batch.tapped))
    assert len(proposal.draft) == BLOCK - 1
    text = Text.of(before, [newest, *proposal.draft.tokens, 1])
    with torch.no_grad():
        for i, step in enumerate(trainee.draft(teacher.batch([text]))):
            (row,) = (step.labels == len(before) + i).nonzero()[0]
            logits, cap = step.states[row] @ step.output.weight.T, step.output.cap
            logits = cap * torch.tanh(logits / cap) if cap else logits
            torch.testing.assert_close(logits, scored[0][i], atol=1e-4, rtol=1e-4)
