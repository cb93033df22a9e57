"""Assistants of Gemma 4 beside transformers' class, in any batch and through every trouble; what is refused."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import (
    Ask,
    accepted,
    assert_same,
    meddle_at_random,
    preempt_every_third_step,
    run,
)
from assistants import PAIRS, Reference, convert_assistant, write_assistant
from crossing import crossed
from families import write_family
from pieces import random_tokens
from safetensors.torch import load_file, save_file
from switching import any_choices
from torch import Tensor
from watching import Watch

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.methods.gemma4_assistant.proposer import Options, Proposer
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner
from parlay.types.draft import Draft
from parlay.types.plan import CatchUp, Span, Verdict

BLOCKS, SIZE, LENGTH, VOCAB = 24, 8, 4, 260
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
FIXED: dict[str, Any] = {"lengths": "fixed", "num_speculative_tokens": 3}
TREE: dict[str, Any] = {"lengths": "fixed", "num_speculative_tokens": 12, "tree": {"width": 4, "depth": 3}}
Models = Callable[[str], Path]
Pairs = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Models:
    sizes = {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB}
    return cache(lambda name: write_family(tmp_path_factory.mktemp("models") / name, name, seed=2, calm=0.3, **sizes))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, target: Models) -> Pairs:
    def write(name: str) -> tuple[Path, Path]:
        family, changes = PAIRS[name]
        return target(family), write_assistant(tmp_path_factory.mktemp("heads") / name, target(family), **changes)

    return cache(write)


def loaded(path: Path, **options: Any) -> tuple[Proposer, ModelRunner]:
    kernels, config = select_kernels(), describe_model(str(path))
    model = load_model(config, torch.float32, 256, kernels)
    runner = ModelRunner(model, kernels, BLOCKS, SIZE)
    head = Proposer(Options(**options), TargetInfo(config, torch.float32, 256))
    head.load(Runtime(kernels, BLOCKS, SIZE, 256, model, runner.cache))
    return head, runner


def drafts(
    head: Proposer, runner: ModelRunner, texts: list[list[int]], more: dict[str, int] | None = None
) -> list[Draft]:
    """Return what follows texts, of which the target sees all but the last token; blocks are in no order."""
    tables = [tuple(range(i, BLOCKS, len(texts)))[::-1] for i in range(len(texts))]
    segments = [Segment(text[:-1], 0, blocks) for text, blocks in zip(texts, tables, strict=True)]
    hidden = runner.forward(flatten(segments, SIZE)).clone()
    params, ask = SamplingParams(temperature=0).draw, CatchUp(budget=LENGTH, **(more or {}))
    spans = [
        Span(i, tuple(text[:-1]), 0, blocks, 0, params, sample=True, remaining=99, catch_up=ask)
        for i, (text, blocks) in enumerate(zip(texts, tables, strict=True))
    ]
    return [one.draft for one in head.propose(spans, [Verdict((text[-1],)) for text in texts], hidden)]


# ------------------------------------------------------------------------------------------------- the same numbers


# Recordings are of what is computed plainly, so that every other model has one in the suite.
@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        pytest.param(name, recorded, marks=pytest.mark.soak if recorded and i % 2 else ())
        for i, name in enumerate(PAIRS)
        for recorded in (False, True)
    ],
)
def test_drafts_are_those_of_transformers(
    pair: Pairs, monkeypatch: pytest.MonkeyPatch, name: str, recorded: bool
) -> None:
    """Of two requests together, shorter and longer than the window: tokens, and logits and states within 1e-4."""
    target, assistant = pair(name)
    (head, runner), reference = loaded(target, model=str(assistant)), Reference(target, assistant)
    scored: list[Tensor] = []
    states: list[Tensor] = []
    score = head.score

    def noted(level: int, rows: int) -> Tensor:
        scored.append(score(level, rows).clone())
        states.append(head._hidden[:rows].clone())
        return scored[-1]

    if not recorded:
        monkeypatch.setattr(head._expander.recorder, "_usable", False)
        monkeypatch.setattr(head, "score", noted)
    cap = head.config.style.logit_cap
    for seed in range(2):
        texts = [random_tokens(length + 5 * seed, seed) for length in (9, 61)]
        scored.clear()
        states.clear()
        for i, (text, found) in enumerate(zip(texts, drafts(head, runner, texts), strict=True)):
            chain, logits, left = reference.draft(text, LENGTH)
            assert list(found.tokens) == chain
            if not recorded:
                capped = cap * (logits / cap).tanh() if cap else logits  # which transformers leaves to the draws
                torch.testing.assert_close(torch.stack([level[i] for level in scored]), capped, **CLOSE)
                torch.testing.assert_close(torch.stack([level[i] for level in states]), left, **CLOSE)


def test_paths_of_trees(pair: Pairs) -> None:
    """Each goes on from its own states and its own request's keys: a node is as likely as transformers has it."""
    target, assistant = pair("plain")
    (head, runner), reference = loaded(target, model=str(assistant)), Reference(target, assistant)
    texts = [random_tokens(length, 3) for length in (40, 25)]
    tree = drafts(head, runner, texts, {"width": 3, "nodes": 30})
    for text, found in zip(texts, tree, strict=True):
        assert not found.is_chain
        assert found.probs is not None
        paths: list[tuple[int, ...]] = []
        for node, parent in enumerate(found.parents):
            paths.append((*(paths[parent] if parent >= 0 else ()), node))
        for leaf in {*range(len(found))} - {*found.parents}:
            tokens = [found.tokens[node] for node in paths[leaf]]
            for node, row in zip(paths[leaf], reference.along(text, tokens).softmax(-1), strict=True):
                assert found.probs[node] == pytest.approx(float(row[found.tokens[node]]), rel=1e-3)
        assert max(map(len, paths)) == LENGTH


def write_repeating(path: Path, target: Path) -> Path:
    """Write an assistant that mostly drafts the last token again, as random targets decode it."""
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    width = embedding.shape[1]

    def repeat(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors["pre_projection.weight"] = torch.cat((torch.eye(width), 0.4 * torch.randn(width, width)), dim=1)
        tensors["model.embed_tokens.weight"] = embedding
        for name in [name for name in tensors if ".post_" in name]:
            tensors[name] = 0.1 * tensors[name]

    torch.manual_seed(0)
    source = write_assistant(path.parent / f"{path.name}-at-random", target, hidden_size=width)
    return changed(source, path, repeat)


def test_drafts_of_an_engine(target: Models, tmp_path: Path) -> None:
    """Behind accepted tokens, cached prefixes and preemptions they follow from transformers' logits."""
    path, assistant = target("gemma4"), write_repeating(tmp_path / "repeating", target("gemma4"))
    reference = Reference(path, assistant)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
    llm = LLM(str(path), **options, speculative_config={"model": str(assistant), **FIXED})
    watch = Watch(meddle_at_random(random.Random(3), 0.2))
    for _ in range(2):
        found = run(llm, asks(), watch)
        assert 50 < accepted(found) < sum(one.metrics.drafted for one in found)
    assert len(watch.drafts) > 30
    for known, noted in watch.drafts.items():
        tokens = noted.draft.tokens
        logits = reference.along(known, tokens)
        assert tokens == tuple(noted.choose(row, len(known) + i) for i, row in enumerate(logits))


# ---------------------------------------------------------------------------------------------------- the same tokens


def asks(**given: Any) -> list[Ask]:
    given = {"max_tokens": 24, "logprobs": 1, "ignore_eos": True, **given}
    return [
        Ask(tuple(random_tokens(19 * seed + 3, seed)), SamplingParams(temperature=t, seed=seed, **given))
        for seed in range(3)
        for t in (0.0, 0.8)
    ]


@pytest.fixture(scope="module")
def plainly(target: Models) -> Callable[[str], list[Any]]:
    def answers(name: str) -> list[Any]:
        options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "enable_prefix_caching": False}
        llm = LLM(str(target(name)), **options, speculative_config=None)
        return [one for ask in asks() for one in run(llm, [ask])]

    return cache(answers)


@crossed(name=("plain", "shared-keys-ordered"), shape=("chains", "trees"))
def test_same_tokens(pair: Pairs, plainly: Callable[[str], list[Any]], name: str, shape: str) -> None:
    """Together, from cached prefixes and preempted."""
    target, assistant = pair(name)
    spec = TREE if shape == "trees" else FIXED
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
    llm = LLM(str(target), **options, speculative_config={"model": str(assistant), **spec})
    assert llm.engine.methods == ("none", "gemma4_assistant")
    for meddle in None, preempt_every_third_step(), meddle_at_random(random.Random(3), 0.3):
        found = run(llm, asks(), meddle)
        assert_same(found, plainly(PAIRS[name][0]))
        assert sum(one.metrics.drafted for one in found) > 50
    assert accepted(found) > 0


def test_nothing_is_caught_up(
    pair: Pairs, plainly: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is switched off and on in the middle of requests."""
    any_choices(monkeypatch)
    target, assistant = pair("shared-keys")
    spec = {"model": str(assistant)}
    llm = LLM(str(target), dtype="float32", max_model_len=128, block_size=8, speculative_config=spec)
    watch = Watch().over(llm)
    assert_same(run(llm, asks(), watch), plainly("gemma4-inputs"))
    given = [span.catch_up for plan in watch.plans for span in plan.spans]
    assert {ask.budget > 0 for ask in given} == {True, False}
    assert not any(ask.follow or ask.unseen or ask.rerun for ask in given)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("name", [pytest.param("plain", marks=pytest.mark.soak), "shared-keys-ordered"])
def test_two_ranks(pair: Pairs, plainly: Callable[[str], list[Any]], name: str) -> None:
    """Each has a part of the keys, or none; together they draft what one does."""
    target, assistant = pair(name)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
    found = []
    for more in {"tensor_parallel_size": 2}, {}:
        llm = LLM(str(target), **options, **more, speculative_config={"model": str(assistant), **FIXED})
        watch = Watch()
        assert_same(run(llm, asks(), watch), plainly(PAIRS[name][0]))
        found.append({known: noted.draft for known, noted in watch.drafts.items()})
        llm.engine.close()
    assert len(found[0]) > 20
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["plain", "ordered"])
def test_in_few_bits(pair: Pairs, name: str) -> None:
    sizes = {}
    target, assistant = pair(name)
    for kind in (None, "int8", "int4"):
        spec = {"model": str(assistant), "quantization": kind, **FIXED}
        llm = LLM(str(target), dtype="bfloat16", speculative_config=spec)
        sizes[kind] = llm.engine._worker._proposer.weight_bytes  # type: ignore[union-attr]
        out = llm.generate("abc", SamplingParams(max_tokens=12, ignore_eos=True), use_tqdm=False)[0].outputs[0]
        assert out.metrics.drafted > 5
    assert sizes["int4"] < sizes["int8"] < sizes[None]


# --------------------------------------------------------------------------------------------------------- GGUF files


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", ["plain", "shared-keys"])
def test_gguf_files(pair: Pairs, tmp_path: Path, name: str, kind: str) -> None:
    """They have the drafts of the directory with the same numbers; they lack centroids."""
    target, assistant = pair(name)
    file = convert_assistant(assistant, target, tmp_path / "assistant.gguf", kind)
    text = random_tokens(40, 1)
    found = []
    for path in assistant, file:
        head, runner = loaded(target, model=str(path))
        drafts(head, runner, [text])
        found.append((head.score(LENGTH - 1, 1).clone(), head.weight_bytes))
    (expected, whole), (logits, small) = found
    if kind == "F32":
        assert torch.equal(logits, expected)
    else:
        assert 0 < float((logits - expected).abs().mean()) < 0.1 * float(expected.abs().mean())
        assert small < whole


def test_a_gguf_file_is_found_by_itself(pair: Pairs, tmp_path: Path) -> None:
    target, assistant = pair("plain")
    file = convert_assistant(assistant, target, tmp_path / "any.gguf", "F32")
    llm = LLM(str(target), speculative_config={"model": str(file), **FIXED})
    assert llm.engine.methods == ("none", "gemma4_assistant")
    with pytest.raises(ModelError, match="is a draft head for the method 'gemma4_assistant', no model by itself"):
        LLM(str(file))


# --------------------------------------------------------------------------------------------- names and bad input


@pytest.mark.parametrize("method", [None, "gemma4_assistant", "gemma4_mtp", "mtp"])
def test_what_it_is_called(pair: Pairs, method: str | None) -> None:
    """vLLM has one method for layers of models' own and for assistants."""
    target, assistant = pair("plain")
    given = {} if method is None else {"method": method}
    llm = LLM(str(target), speculative_config={"model": str(assistant), **given, **FIXED})
    assert llm.engine.methods == ("none", "gemma4_assistant")


def test_beside_auto(pair: Pairs) -> None:
    target, assistant = pair("plain")
    llm = LLM(str(target), speculative_config={"method": "auto", "model": str(assistant)})
    assert llm.engine.methods == ("none", "ngram", "suffix", "gemma4_assistant")


def refused(target: Path, assistant: Path, **more: Any) -> str:
    with pytest.raises((ModelError, ConfigError)) as caught:
        LLM(str(target), speculative_config={"model": str(assistant), **FIXED}, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(source: Path, path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> Path:
    """Copy a checkpoint, with changed tensors and config."""
    path.mkdir()
    tensors, config = load_file(source / "model.safetensors"), json.loads((source / "config.json").read_text())
    change(tensors, config)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_another_target(pair: Pairs, target: Models, tmp_path: Path) -> None:
    _, assistant = pair("plain")
    wide = write_family(tmp_path / "wide", "gemma4", hidden_size=96, vocab_size=VOCAB)
    assert "needs hidden states of width 64 but the target" in refused(wide, assistant)
    words = write_family(tmp_path / "words", "gemma4", vocab_size=900)
    assert "needs a vocabulary of 260 but the target" in refused(words, assistant)
    message = refused(target("gemma4-inputs"), assistant)
    assert "a layer without a window, 1 heads of 32 columns, but the target" in message
    assert "has 2 heads of 32 there; give the Gemma 4 model that the assistant was made for" in message


@pytest.mark.parametrize("name", ["llama-biases", "deepseekv3", "gpt2"])
def test_a_target_that_is_no_gemma(pair: Pairs, tmp_path: Path, name: str) -> None:
    _, assistant = pair("plain")
    other = write_family(tmp_path / name, name)
    message = refused(other, assistant)
    assert "has no such layer; give the Gemma 4 model that the assistant was made for" in message


def test_ranks_that_have_none(pair: Pairs) -> None:
    target, assistant = pair("plain")
    info = TargetInfo(describe_model(str(target)), torch.float32, 128, ranks=4)
    with pytest.raises(ConfigError, match=r"each of 4 ranks has a part, so that draft_tensor_parallel_size=2 is not"):
        Proposer(Options(model=str(assistant), draft_tensor_parallel_size=2), info)


def test_stages(pair: Pairs, tmp_path: Path) -> None:
    _, assistant = pair("plain")
    other = write_family(tmp_path / "other", "llama-biases")
    assert "leaves each rank some layers" in refused(other, assistant, pipeline_parallel_size=2)


def test_damaged_assistants(pair: Pairs, tmp_path: Path) -> None:
    target, assistant = pair("ordered")

    def complaint(number: int, *, without: str = "", config: dict[str, Any] | None = None, **more: Any) -> str:
        def change(tensors: dict[str, Tensor], raw: dict[str, Any]) -> None:
            tensors.pop(without, None)
            tensors.update(more.get("tensors", {}))
            raw.update(config or {})
            raw["text_config"] = raw["text_config"] | more["text"] if "text" in more else raw["text_config"]

        return refused(target, changed(assistant, tmp_path / str(number), change))

    zeros, layer = torch.zeros, "model.layers.1.self_attn.q_proj.weight"
    cases: list[tuple[str, dict[str, Any]]] = [
        ("lacks the tensor 'post_projection.weight'", {"without": "post_projection.weight"}),
        (f"lacks the tensor '{layer}'", {"without": layer}),
        ("[32, 64], but the config says [32, 128]", {"tensors": {"pre_projection.weight": zeros(32, 64)}}),
        ("does not explain: 'extra'", {"tensors": {"extra": zeros(3)}}),
        (
            "does not name each token once",
            {"tensors": {"masked_embedding.token_ordering": zeros(VOCAB, dtype=torch.int64)}},
        ),
        ("do not divide among 7 centroids", {"config": {"num_centroids": 7}}),
        ("text_config must be an object, not 5", {"config": {"text_config": 5}}),
        ("backbone_hidden_size must be a whole number", {"config": {"backbone_hidden_size": "x"}}),
        ("enable_moe_block=True is not supported", {"text": {"enable_moe_block": True}}),
        ("sliding_window must be", {"text": {"sliding_window": None}}),
    ]
    for number, (says, change) in enumerate(cases):
        assert says in complaint(number, **change)
