"""Models with several layers for further tokens: what each of them drafts, and what is kept for it meanwhile."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import (
    Ask,
    Meddle,
    assert_same,
    meddle_at_random,
    preempt_every_third_step,
    run,
    with_params,
)
from crossing import crossed
from families import write_family
from mtp_layers import Reference, write_mtp
from pieces import random_tokens
from safetensors.torch import load_file, save_file
from torch import Tensor
from watching import Known, Noted, Watch, head_of
from watching import asks as watched_asks

from parlay import LLM, ModelError, SamplingParams
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model, mtp_layers
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.methods.mtp.proposer import Options, Proposer
from parlay.types.cache import StateCapacity
from parlay.types.params import SamplingParams as Params
from parlay.types.plan import CatchUp, Span, Verdict

BLOCKS, SIZE, LENGTH = 24, 8, 5
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
FIXED: dict[str, Any] = {"method": "mtp", "lengths": "fixed", "num_speculative_tokens": LENGTH}
TREE: dict[str, Any] = FIXED | {"tree": {"width": 2, "depth": 5}, "num_speculative_tokens": 18}
# With a projection for each and for all, experts, latent attention, a recurrent target, another order and state,
# values narrower than keys in windows, output layers of their own.
SEVERAL = {"glm4moe": 3, "deepseekv3": 2, "qwen3_5": 3, "qwen2": 3, "ernie4_5_moe": 2, "mimov2flash": 3, "step3p5": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        path = tmp_path_factory.mktemp("models") / name
        return write_mtp(path, name, layers=SEVERAL[name], calm=0.3)

    return cache(write)


@pytest.fixture(scope="module")
def references(model: Callable[[str], Path]) -> Callable[[str], Reference]:
    return cache(lambda name: Reference(model(name)))


@pytest.fixture
def engine(model: Callable[[str], Path]) -> Callable[..., LLM]:
    def make(name: str, spec: dict[str, Any] | None = FIXED, **options: Any) -> LLM:
        given: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "block_size": 8, **options}
        return LLM(str(model(name)), speculative_config=spec, **given)

    return make


def asks(count: int = 3) -> list[Ask]:
    given: dict[str, Any] = {"max_tokens": 14, "logprobs": 1, "ignore_eos": True}
    return [
        Ask(tuple(random_tokens(11 * (seed + 1), seed)), SamplingParams(temperature=t, seed=seed, **given))
        for seed in range(count)
        for t in (0.0, 0.8)
    ]


@pytest.fixture(scope="module")
def plainly(model: Callable[[str], Path]) -> Callable[[str], list[Any]]:
    def ask(name: str) -> list[Any]:
        llm = LLM(str(model(name)), dtype="float32", enable_prefix_caching=False, speculative_config=None)
        return [completion for one in asks() for completion in run(llm, [one])]

    return cache(ask)


# ------------------------------------------------------------------------------------------------- what each computes


# Recordings are of what is computed plainly, so that every other model has one in the suite.
@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        pytest.param(name, recorded, marks=pytest.mark.soak if recorded and i % 2 else ())
        for i, name in enumerate(SEVERAL)
        for recorded in (False, True)
    ],
)
def test_drafts_are_those_of_transformers(
    model: Callable[[str], Path],
    references: Callable[[str], Reference],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    recorded: bool,
) -> None:
    """States and logits of each layer, and of the last one going on, behind short texts and long ones.

    The first draft ends before the last layer.
    """
    kernels, reference = select_kernels(), references(name)
    target = load_model(describe_model(str(model(name))), torch.float32, 256, kernels)
    head = Proposer(Options(), TargetInfo(target.config, torch.float32, 256))
    head.load(Runtime(kernels, BLOCKS, SIZE, 256, target, (), StateCapacity(2, 2)))
    assert head.depth == len(reference.layers) == SEVERAL[name]
    scored: list[tuple[int, Tensor]] = []
    score = head.logits_by
    if not recorded:
        monkeypatch.setattr(head._expander.recorder, "_usable", False)
        monkeypatch.setattr(
            head, "logits_by", lambda layer, state: (scored.append((layer, state.clone())), score(layer, state))[1]
        )
    for length, budget in (head.depth, 2), (67, LENGTH):
        *before, newest = random_tokens(length, length)
        expected = reference.draft((*before, newest), budget)
        ask = CatchUp(unseen=tuple(before), follow=True, budget=budget)
        blocks, params = tuple(range(BLOCKS)), Params(temperature=0)
        span = Span(0, tuple(before), 0, blocks, 0, params, sample=True, remaining=99, catch_up=ask)
        scored.clear()
        hidden = expected.hidden
        (proposal,) = head.propose([span], [Verdict((newest,))], hidden, hidden[None] if head.taps else None)
        assert list(proposal.draft.tokens) == expected.tokens
        if not recorded:
            states, logits = torch.cat([state for _, state in scored]), [score(*each).clone() for each in scored]
            torch.testing.assert_close(states, expected.states, **CLOSE)
            torch.testing.assert_close(torch.cat(logits), expected.logits, **CLOSE)


@pytest.mark.parametrize("name", ["glm4moe", "deepseekv3"])
def test_the_reference_is_the_loop_of_transformers(model: Callable[[str], Path], name: str) -> None:
    """Which draws one token with each layer."""
    reference, tokens = Reference(model(name)), random_tokens(20, 3)
    count = len(reference.layers)
    expected = reference.draft(tokens, count)
    with torch.no_grad():
        found, logits, _ = reference.layers[0]._whole[0](
            torch.tensor([tokens[1:]]), expected.hidden[None], None, torch.arange(1, len(tokens))[None], None
        )
    assert found[0].tolist() == expected.tokens
    torch.testing.assert_close(logits[0], expected.logits, **CLOSE)


def test_layers_that_foresee_the_target_are_always_right(tmp_path: Path) -> None:
    """The target's next token follows from the last one, and each layer looks at its token alone."""
    path = write_mtp(tmp_path / "model", "glm4moe", layers=3, tie_word_embeddings=False)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif name.endswith("norm.weight"):
            tensor.fill_(1.0)
        elif name.endswith("eh_proj.weight"):
            tensor.copy_(torch.eye(len(tensor)).repeat(1, 2))
            tensor[:, len(tensor) :] = 0
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    llm = LLM(str(path), dtype="float32", max_model_len=128, speculative_config=FIXED)
    for found in run(llm, [Ask(tuple(random_tokens(9 * seed + 4, seed)), params) for seed in range(3)]):
        assert found.metrics.accepted == found.metrics.drafted > 20


# ------------------------------------------------------------------------------------------------- what is kept of it


def assert_right(reference: Reference, drafts: dict[Known, Noted], most: int = 25) -> None:
    """Compare chains with the reference's, by the known tokens that each follows; a spread of them if many."""
    assert drafts
    for known, noted in list(drafts.items())[:: -(-len(drafts) // most)]:
        expected = reference.draft(known, len(noted.draft), noted.choose)
        assert list(noted.draft.tokens) == expected.tokens, f"after {len(known)} tokens"
        probs = [noted.likely(*pair) for pair in zip(expected.logits, expected.tokens, strict=True)]
        assert noted.draft.probs == pytest.approx(probs, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "meddle", "options"),
    [
        ("glm4moe", None, {"max_num_batched_tokens": 23, "block_size": 3}),
        ("glm4moe", preempt_every_third_step, {"max_num_batched_tokens": 40, "num_blocks": 20}),
        ("qwen3_5", None, {"max_num_batched_tokens": 23}),  # preempted it begins anew, and sees other pairs
    ],
    ids=["chunks", "preempted", "recurrent"],
)
def test_every_draft_follows_from_the_text_alone(
    model: Callable[[str], Path],
    engine: Callable[..., LLM],
    name: str,
    meddle: Callable[[], Meddle] | None,
    options: dict[str, int],
) -> None:
    """In chunks, in company, from the cache, after rejected drafts and accepted ones, and after preemption."""
    llm, watch = engine(name, **options), Watch(meddle and meddle())
    for own in (watched_asks(), watched_asks(temperature=0.0)):
        run(llm, [with_params(ask, max_tokens=12) for ask in own], watch)
    lengths = {len(known) for known in watch.drafts}
    assert min(lengths) == SEVERAL[name]  # before, not every layer has pairs
    assert_right(Reference(model(name)), watch.drafts)


def test_trees(model: Callable[[str], Path], engine: Callable[..., LLM]) -> None:
    """Each node is as likely as the reference says of its path, and among the likeliest there."""
    llm, watch, reference = engine("glm4moe", TREE), Watch(), Reference(model("glm4moe"))
    run(llm, [with_params(ask, max_tokens=24) for ask in watched_asks(temperature=0.0)], watch)
    checked = set[tuple[Known, int]]()
    for known, noted in list(watch.drafts.items())[:60:9]:
        draft = noted.draft
        assert draft.probs is not None
        for leaf in {*range(len(draft))} - {*draft.parents}:
            path = [leaf]
            while draft.parents[path[0]] >= 0:
                path.insert(0, draft.parents[path[0]])
            tokens = [draft.tokens[i] for i in path]
            found = reference.draft(known, len(path), lambda _, at, k=known, t=tokens: t[at - len(k)])  # type: ignore[misc]
            for node, token, row in zip(path, tokens, found.logits.softmax(-1), strict=True):
                assert float(row[token]) == pytest.approx(draft.probs[node], rel=2e-3)
                assert int((row > row[token]).sum()) < 2
            checked |= {(known, node) for node in path[3:]}
    assert len(checked) > 10


def test_a_cached_prefix(model: Callable[[str], Path], engine: Callable[..., LLM]) -> None:
    """Whether the layers have seen it or were off meanwhile."""
    llm, watch = engine("glm4moe"), Watch()
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    long, other = Ask(tuple(random_tokens(61)), params), Ask(tuple(random_tokens(45, 3)), params)
    (first,) = run(llm, [long], watch)
    run(llm, [with_params(other, speculative={"enabled": False})])
    for ask in long, Ask((*long.prompt, *first.token_ids, 5, 6), params), other:
        (found,) = run(llm, [ask], watch)
        assert found.metrics.cached_tokens >= 40
        assert found.metrics.drafted > 0
    assert_right(Reference(model("glm4moe")), watch.drafts)


# --------------------------------------------------------------------------------------------------------- the tokens


@crossed(name=tuple(SEVERAL), shape=("chains", "trees"))
def test_same_tokens(engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], name: str, shape: str) -> None:
    llm = engine(name, TREE if shape == "trees" else FIXED, max_num_batched_tokens=40)
    for meddle in (None, preempt_every_third_step()):
        assert_same(run(llm, asks(), meddle), plainly(name))


@pytest.mark.parametrize(
    ("spec", "shared", "split"),
    [
        pytest.param(FIXED, {}, {"tensor_parallel_size": 2}, marks=pytest.mark.soak),
        pytest.param(FIXED, {"draft_tensor_parallel_size": 2}, {"tensor_parallel_size": 2}, marks=pytest.mark.soak),
        (TREE, {"draft_tensor_parallel_size": 2}, {"tensor_parallel_size": 2}),
        (FIXED, {}, {"pipeline_parallel_size": 2}),
    ],
    ids=["tp", "shared", "trees", "pp"],
)
@pytest.mark.usefixtures("forked_ranks")
def test_ranks(
    engine: Callable[..., LLM],
    plainly: Callable[[str], list[Any]],
    spec: dict[str, Any],
    shared: dict[str, int],
    split: dict[str, int],
) -> None:
    """They draft what one rank does."""

    def drafts(spec: dict[str, Any], **options: Any) -> dict[Known, Any]:
        watch = Watch(meddle_at_random(random.Random(4), preempted=0.2))
        found = run(engine("glm4moe", spec, num_blocks=40, max_num_batched_tokens=40, **options), asks(), watch)
        assert_same(found, plainly("glm4moe"))
        return {known: noted.draft.tokens for known, noted in watch.drafts.items()}

    found = drafts(spec | shared, **split)
    assert len(found) > 20
    if "pipeline_parallel_size" not in split:  # whose stages are at work on other requests
        assert found == drafts(spec)


# ---------------------------------------------------------------------------------------------------------- the files


def test_memory(engine: Callable[..., LLM], model: Callable[[str], Path]) -> None:
    """Each layer has keys and values, and each but the last a state; a draft is as long as there are layers."""
    head = head_of(engine("glm4moe"))
    config = describe_model(str(model("glm4moe")))
    keys = 2 * config.num_kv_heads * config.head_dim
    assert head.cache.bytes_per_token == (3 * keys + 2 * config.hidden_size) * 4
    assert len(mtp_layers(config)) == 3


def test_a_layer_that_is_not_whole(model: Callable[[str], Path], tmp_path: Path) -> None:
    """It is an error to ask for them then; with a gap in the numbers, those before it are all there are."""
    source, path = model("glm4moe"), write_family(tmp_path / "less", "glm4moe")
    tensors = load_file(source / "model.safetensors")
    number = describe_model(str(source)).num_layers
    del tensors[f"model.layers.{number + 1}.self_attn.q_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"lacks the tensor 'model.layers.{number + 1}.self_attn.q_proj.weight'"):
        LLM(str(path), speculative_config=FIXED)
    del tensors[f"model.layers.{number + 1}.eh_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert len(mtp_layers(describe_model(str(path)))) == 1
