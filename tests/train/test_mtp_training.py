"""A model's layer for further tokens in training: beside transformers' class, and as it is served when written."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, write_family
from mtp_layers import MODELS, Reference, write_mtp
from pieces import random_tokens
from safetensors.torch import load_file
from torch import Tensor
from training import options

from parlay import ConfigError, ModelError
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.methods.mtp.proposer import Options as Served
from parlay.proposers.methods.mtp.proposer import Proposer
from parlay.proposers.methods.mtp.training import Options, Trainee
from parlay.train.data import Text
from parlay.train.save import save_head
from parlay.train.teacher import Teacher, TeacherBatch
from parlay.train.trainee import distil
from parlay.types.cache import StateCapacity
from parlay.types.params import SamplingParams
from parlay.types.plan import CatchUp, Span, Verdict

DEPTH, BLOCKS, SIZE = 3, 8, 8
# Several layers: with a projection for each and for all, experts, and norms of the model's own.
SEVERAL = {"glm4moe": 2, "qwen3_5": 3, "ernie4_5_moe": 2, "mimov2flash": 3}
# What has no kind of layer, and no names, that another one lacks.
ALIKE = ("qwen3_5-alike", "qwen3next", "glm4moelite", "deepseekv3-yarn")
REFUSED = ("falconh1", "gemma4", "opt", "step3p5")
DISTINCT = [name for name in MODELS if name not in {*ALIKE, *REFUSED}]
CHOSEN = "gemma2", "gptoss", "ministral3"  # without a layer of their own: caps, sinks, a growing query
NEW = [name for name in FAMILIES if name not in {*MODELS, *CHOSEN} and not name.startswith(REFUSED)]
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return cache(
        lambda name, layers=1: write_mtp(tmp_path_factory.mktemp("models") / name, name, layers=layers, calm=0.3)
    )


def teacher_of(path: Path) -> Teacher:
    return Teacher(options(path, path, path, dtype="float32", max_model_len=128))


def trainee_of(teacher: Teacher, *, disturbed: bool = False) -> Trainee:
    torch.manual_seed(0)
    trainee = Trainee(Options(rollout=DEPTH), teacher, [])
    if disturbed:
        with torch.no_grad():
            for parameter in trainee.parameters():
                parameter += 0.1 * parameter.std(correction=0).clamp(0.1) * torch.randn(parameter.shape)
    return trainee


@torch.no_grad()
def logits_of(trainee: Trainee, batch: TeacherBatch) -> Iterator[dict[int, Tensor]]:
    """Yield logits of each node by the row that it starts from."""
    for i, step in enumerate(trainee.draft(batch)):
        logits, cap = step.states @ step.output.weight.T, step.output.cap
        logits = cap * torch.tanh(logits / cap) if cap else logits
        yield dict(zip((step.labels - i - 1).tolist(), logits, strict=True))


@pytest.mark.parametrize(("name", "layers"), [*((name, 1) for name in DISTINCT), *SEVERAL.items()])
def test_logits_are_those_of_transformers(model: Callable[..., Path], name: str, layers: int) -> None:
    """Of the model's own layers, along texts of several lengths, from every row whose next tokens count."""
    teacher, reference = teacher_of(model(name, layers)), Reference(model(name, layers))
    texts = [Text.of(random_tokens(5, seed), random_tokens(n, seed + 9)) for seed, n in enumerate((13, 4, 8))]
    found = list(logits_of(trainee_of(teacher), teacher.batch(texts)))
    assert len(found) == DEPTH
    first, checked = 0, 0
    for text in texts:
        tokens = text.tokens.tolist()
        for last in range(4, len(tokens) - 1 - DEPTH):
            expected = reference.draft(tokens[: last + 2], DEPTH, lambda _, at, tokens=tokens: tokens[at])  # type: ignore[misc]
            for logits, wanted in zip(found, expected.logits, strict=True):
                torch.testing.assert_close(logits[first + last], wanted, **CLOSE)
                checked += 1
        first += len(tokens)
    assert checked > 10 * DEPTH


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        *((name, 1) for name in (*DISTINCT, *CHOSEN)),
        *SEVERAL.items(),
        *(pytest.param(name, 1, marks=pytest.mark.soak) for name in NEW),
    ],
)
def test_what_is_written_drafts_as_it_was_trained(
    model: Callable[..., Path], name: str, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model has no layer of its own too: then it begins as the model's last."""
    path = model(name, layers) if name in MODELS else write_family(tmp_path / "target", name, calm=0.3)
    teacher = teacher_of(path)
    trainee = trainee_of(teacher, disturbed=True)
    (tmp_path / "layer").mkdir()
    save_head(tmp_path / "layer", trainee, torch.float32, "", path)
    kernels, config = select_kernels(), describe_model(str(path))
    target = load_model(config, torch.float32, 128, kernels)
    head = Proposer(Served(model=str(tmp_path / "layer")), TargetInfo(config, torch.float32, 128))
    head.load(Runtime(kernels, BLOCKS, SIZE, 128, target, (), StateCapacity(2, 2)))
    assert head.depth == layers
    monkeypatch.setattr(head._expander.recorder, "_usable", False)
    scored, score = [], head.logits
    monkeypatch.setattr(head, "logits", lambda state: scored.append(score(state).clone()) or scored[-1])
    *before, newest = random_tokens(20, 3)
    batch = teacher.batch([Text.of([], before)])
    tapped = torch.stack(batch.tapped) if batch.tapped else None
    ask, params = CatchUp(unseen=tuple(before), follow=True, budget=DEPTH), SamplingParams(temperature=0)
    span = Span(0, tuple(before), 0, tuple(range(BLOCKS)), 0, params, sample=True, remaining=99, catch_up=ask)
    (proposal,) = head.propose([span], [Verdict((newest,))], batch.hidden, tapped)
    text = Text.of(before, [newest, *proposal.draft.tokens, 1])
    for i, found in enumerate(logits_of(trainee, teacher.batch([text]))):
        torch.testing.assert_close(found[len(before) - 1], scored[i][0], **CLOSE)


def test_files_have_the_familys_names(model: Callable[[str], Path], tmp_path: Path) -> None:
    """Those of the model's own layer, where it is not one of stacked experts, with the model's config."""
    for name, layers in ("qwen3_5", 1), ("deepseekv3", 1), ("nemotronh-experts", 1), ("mimov2flash", 3):
        path = model(name, layers)
        (tmp_path / name).mkdir()
        save_head(tmp_path / name, trainee_of(teacher_of(path)), torch.bfloat16, "", path)
        whole, layer = load_file(path / "model.safetensors"), load_file(tmp_path / name / "model.safetensors")
        assert layer.keys() <= whole.keys()
        for own, tensor in layer.items():
            torch.testing.assert_close(tensor, whole[own].bfloat16(), rtol=0, atol=0)
        config: dict[str, Any] = json.loads((tmp_path / name / "config.json").read_text())
        assert config["torch_dtype"] == "bfloat16"
        assert config["architectures"] == json.loads((path / "config.json").read_text())["architectures"]


@pytest.mark.parametrize(("name", "layers"), [*((name, 1) for name in DISTINCT), *SEVERAL.items()])
def test_gradients(model: Callable[..., Path], name: str, layers: int) -> None:
    """The loss changes along them as they say, and every tensor but the routers' biases has one."""
    teacher = teacher_of(model(name, layers))
    trainee, batch = trainee_of(teacher), teacher.batch([Text.of(random_tokens(3), random_tokens(30, 5))])

    def loss() -> Tensor:
        return torch.stack([distil(step, batch)[0] for step in trainee.draft(batch)]).sum()

    loss().backward()  # type: ignore[no-untyped-call]
    tensors = dict(zip(trainee._names, trainee.weights, strict=True))
    assert all(name.endswith("correction_bias") for name, p in tensors.items() if p.grad is None)
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in tensors.values()]
    steep = torch.cat([slope.flatten() for slope in slopes]).norm()
    sides = []
    with torch.no_grad():
        for step in (2e-4, -4e-4):
            for p, slope in zip(tensors.values(), slopes, strict=True):
                p += step * slope / steep
            sides.append(float(loss()))
    assert sides[0] - sides[1] == pytest.approx(4e-4 * float(steep), rel=0.03)


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_have_no_such_layer(name: str, tmp_path: Path) -> None:
    config = describe_model(str(write_family(tmp_path / "target", name)))
    with pytest.raises(ModelError, match=r"MTP layer|train a head of another kind"):
        Trainee.check(Options(), config)


def test_a_rollout_that_leaves_layers_out(model: Callable[..., Path]) -> None:
    config = describe_model(str(model("qwen3_5", 3)))
    with pytest.raises(ConfigError, match=r"rollout=2 leaves MTP layers of .* untrained; give at least 3"):
        Trainee.check(Options(rollout=2), config)
