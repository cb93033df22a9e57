"""A model's own layer for further tokens, beside transformers' class; how it is found, and what is refused."""

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, assert_same, run
from crossing import crossed
from families import write_family
from mtp_layers import MODELS, Drafted, Reference, write_mtp
from pieces import random_tokens
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import LLM, ConfigError, ModelError, SamplingParams
from parlay.config import SpeculativeConfig
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model, mtp_layers
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.methods.mtp.proposer import Options, Proposer
from parlay.proposers.vocabulary import frequent_ids
from parlay.types.cache import StateCapacity
from parlay.types.params import SamplingParams as Params
from parlay.types.plan import CatchUp, Span, Verdict

BLOCKS, SIZE, LENGTH = 24, 8, 4
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
FIXED: dict[str, Any] = {"method": "mtp", "lengths": "fixed", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    # Where layers add more, transformers' own float32 is off by up to 2e-4, depending on the processor.
    return cache(lambda name: write_mtp(tmp_path_factory.mktemp("models") / name, name, calm=0.2))


def loaded(path: Path, **options: Any) -> Proposer:
    kernels = select_kernels()
    target = load_model(describe_model(str(path)), torch.float32, 256, kernels)
    head = Proposer(Options(**options), TargetInfo(target.config, torch.float32, 256))
    head.load(Runtime(kernels, BLOCKS, SIZE, 256, target, (), StateCapacity(2, 2)))
    return head


@pytest.fixture(scope="module")
def drafted(model: Callable[[str], Path]) -> Callable[[str, tuple[int, ...]], Drafted]:
    """What transformers' class drafts after a text, computed once each."""
    reference = cache(lambda name: Reference(model(name)))
    return cache(lambda name, text: reference(name).draft(text, LENGTH))


# Recordings are of what is computed plainly, so that every other model has one in the suite.
@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        pytest.param(name, recorded, marks=pytest.mark.soak if recorded and i % 2 else ())
        for i, name in enumerate(MODELS)
        for recorded in (False, True)
    ],
)
def test_drafts_are_those_of_transformers(
    model: Callable[[str], Path],
    drafted: Callable[[str, tuple[int, ...]], Drafted],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    recorded: bool,
) -> None:
    """Its class reads the target's states and its own, of a text and along a chain; logits within 1e-4."""
    head = loaded(model(name))
    scored: list[Tensor] = []
    score = head.logits_by
    if not recorded:
        monkeypatch.setattr(head._expander.recorder, "_usable", False)
        monkeypatch.setattr(head, "logits_by", lambda *given: scored.append(score(*given).clone()) or scored[-1])
    for seed in range(2):
        *before, newest = random_tokens(30 + 22 * seed, seed)
        chain, logits, _, hidden = drafted(name, (*before, newest))
        ask = CatchUp(unseen=tuple(before), follow=True, budget=LENGTH)
        blocks, params = tuple(range(BLOCKS)), Params(temperature=0)
        span = Span(0, tuple(before), 0, blocks, 0, params, sample=True, remaining=99, catch_up=ask)
        scored.clear()
        (proposal,) = head.propose([span], [Verdict((newest,))], hidden, hidden[None] if head.taps else None)
        assert list(proposal.draft.tokens) == chain
        if not recorded:
            torch.testing.assert_close(torch.cat(scored), logits, **CLOSE)


SPECS = {
    "chains": FIXED,
    "trees": FIXED | {"tree": {"width": 4, "depth": 2}, "num_speculative_tokens": 12},
    "auto": {"method": "auto"},
}


@crossed(
    name=("qwen3_5", "qwen3_5moe", "glm4moelite", "mellum", "qwen2", "mimov2flash", "step3p5"), spec=tuple(SPECS)
)
def test_same_tokens(model: Callable[[str], Path], name: str, spec: str) -> None:
    given: dict[str, Any] = {"max_tokens": 14, "logprobs": 1, "ignore_eos": True}
    asks = [
        Ask(tuple(random_tokens(11 * (seed + 1), seed)), SamplingParams(temperature=t, seed=seed, **given))
        for seed in range(3)
        for t in (0.0, 0.8)
    ]
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
    plain = LLM(str(model(name)), **options, enable_prefix_caching=False, speculative_config=None)
    expected = [one for ask in asks for one in run(plain, [ask])]
    llm = LLM(str(model(name)), **options, speculative_config=SPECS[spec])
    for _ in range(2):
        assert_same(run(llm, asks), expected)


def test_in_bfloat16_and_in_few_bits(model: Callable[[str], Path]) -> None:
    """The layer is read as the others of the model are."""
    sizes = {}
    for kind in (None, "int8", "int4"):
        llm = LLM(str(model("qwen3_5")), dtype="bfloat16", quantization=kind, speculative_config=FIXED)
        sizes[kind] = llm.engine._worker._proposer.weight_bytes  # type: ignore[union-attr]
        out = llm.generate("abc", SamplingParams(max_tokens=12, ignore_eos=True), use_tqdm=False)[0].outputs[0]
        assert out.metrics.drafted > 5
    assert sizes["int4"] < sizes["int8"] < sizes[None]


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5-alike"])
def test_few_tokens_to_draft(model: Callable[[str], Path], name: str) -> None:
    """Logits are those of the whole output layer at these tokens, and answers are the same."""
    path, few = model(name), {"draft_vocab_size": 64}
    whole, head = loaded(path), loaded(path, **few)
    assert head.ids is not None
    assert 64 <= len(head.ids) < 70
    state = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.logits(state), whole.logits(state)[:, head.ids], **CLOSE)
    given: dict[str, Any] = {"max_tokens": 24, "logprobs": 1, "ignore_eos": True, "return_rejected": True}
    asks = [Ask(tuple(random_tokens(11)), SamplingParams(temperature=t, seed=3, **given)) for t in (0.0, 0.8)]
    plain = LLM(str(path), dtype="float32", speculative_config=None)
    llm = LLM(str(path), dtype="float32", speculative_config=FIXED | few)
    found = run(llm, asks)
    for one, expected in zip(found, run(plain, asks), strict=True):
        assert one.token_ids == expected.token_ids
        assert one.rejected
        assert {rejected.token_id for rejected in one.rejected} <= set(head.ids.tolist())


def test_commonest_tokens() -> None:
    assert frequent_ids(1000, 20, [700, 5]).tolist() == [*range(10), 700, *range(990, 1000)]
    assert frequent_ids(8, 20, []).tolist() == list(range(8))


# ---------------------------------------------------------------------------------------------------- how it is found


def names(path: Path, spec: Any) -> list[str]:
    return [name for name in LLM(str(path), speculative_config=spec).engine.methods if name != "none"]


def test_auto_has_it_where_a_target_does(model: Callable[[str], Path], tmp_path: Path) -> None:
    assert names(model("qwen3_5"), {"method": "auto"}) == ["ngram", "suffix", "mtp"]
    plain = write_family(tmp_path / "plain", "qwen3_5")
    assert names(plain, {"method": "auto"}) == ["ngram", "suffix"]
    assert names(model("qwen3_5"), {"method": "ngram"}) == ["ngram"]


@pytest.mark.parametrize("method", ["deepseek_mtp", "qwen3_next_mtp", "glm4_moe_mtp", "qwen3_5_mtp"])
def test_vllms_names(method: str) -> None:
    assert SpeculativeConfig.parse({"method": method, "num_speculative_tokens": 1}).method == "mtp"


def changed(source: Path, path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> Path:
    """Copy a checkpoint, with changed tensors and config."""
    path.mkdir()
    tensors, config = load_file(source / "model.safetensors"), json.loads((source / "config.json").read_text())
    change(tensors, config)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    for file in source.glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    return path


def tower(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Make a model the text model of a multimodal one."""
    for name in [name for name in tensors if name.startswith("model.")]:
        tensors[name.replace("model.", "model.language_model.", 1)] = tensors.pop(name)
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(3, 4)
    inner = dict(config)
    config.clear()
    config |= {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    config |= {"text_config": inner | {"model_type": "qwen3_5_text"}, "tie_word_embeddings": False}


def test_other_places_of_its_tensors(model: Callable[[str], Path], tmp_path: Path) -> None:
    """Behind a further prefix, and beside the text model of a multimodal checkpoint."""

    def prefix(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.")]:
            tensors["model." + name] = tensors.pop(name)

    source = model("qwen3_5")
    ask = Ask(tuple(random_tokens(20)), SamplingParams(temperature=0, max_tokens=9, return_rejected=True))
    expected = run(LLM(str(source), dtype="float32", speculative_config=FIXED), [ask])
    assert expected[0].rejected
    for number, change in enumerate((prefix, tower)):
        path = changed(source, tmp_path / str(number), change)
        found = run(LLM(str(path), dtype="float32", speculative_config=FIXED), [ask])
        assert found[0].token_ids == expected[0].token_ids
        assert found[0].rejected == expected[0].rejected


def test_files_that_have_it_alone(model: Callable[[str], Path], tmp_path: Path) -> None:
    """And a target that is named once more, as vLLM's users may."""

    def alone(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        for name in [name for name in tensors if not name.startswith("mtp.")]:
            del tensors[name]

    def without(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.")]:
            del tensors[name]

    source = model("qwen3_5")
    layer, trunk = changed(source, tmp_path / "layer", alone), changed(source, tmp_path / "trunk", without)
    whole = changed(source, tmp_path / "whole", tower)
    ask = Ask(tuple(random_tokens(20)), SamplingParams(temperature=0, max_tokens=9, return_rejected=True))
    (expected,) = run(LLM(str(source), dtype="float32", speculative_config=FIXED), [ask])
    lengths = {"lengths": "fixed", "num_speculative_tokens": 3}
    for path, spec in (
        (trunk, {"model": str(layer)}),
        (trunk, {"method": "mtp", "model": str(layer)}),
        (whole, {"model": str(layer)}),
        (trunk, {"method": "mtp", "model": str(source)}),
        (source, {"method": "mtp", "model": str(source)}),
    ):
        (found,) = run(LLM(str(path), dtype="float32", speculative_config=spec | lengths), [ask])
        assert found.rejected == expected.rejected
    wide = write_family(tmp_path / "wide", "qwen3_5", hidden_size=96)
    with pytest.raises(ModelError, match=r"has shape \[64\], but the config says \[96\]"):
        LLM(str(wide), speculative_config={"model": str(layer)})
    with pytest.raises(ModelError, match="is a draft head for the method 'mtp', no model by itself"):
        LLM(str(layer))


# --------------------------------------------------------------------------------------------------------- bad input


def test_a_target_without_one(tmp_path: Path) -> None:
    path = write_family(tmp_path / "plain", "qwen3_5")
    with pytest.raises(ModelError, match=r"needs an MTP layer of .*, which .*plain lacks"):
        LLM(str(path), speculative_config=FIXED)
    with pytest.raises(ModelError, match="needs an MTP layer"):
        LLM(str(write_family(tmp_path / "llama", "llama-biases")), speculative_config=FIXED)


def test_a_layer_that_is_not_whole(
    model: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks for it is told; "auto" does without."""

    def damage(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        del tensors["mtp.layers.0.self_attn.q_proj.weight"]

    path = changed(model("qwen3_5"), tmp_path / "less", damage)
    with pytest.raises(ModelError, match=r"lacks the tensor 'mtp.layers.0.self_attn.q_proj.weight'"):
        LLM(str(path), speculative_config=FIXED)
    assert names(path, {"method": "auto"}) == ["ngram", "suffix"]
    assert "the method 'mtp' is skipped: " in caplog.text


def test_a_layer_of_another_trunk(model: Callable[[str], Path], tmp_path: Path) -> None:
    def narrow(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors["mtp.fc.weight"] = tensors["mtp.fc.weight"][:32].contiguous()

    path = changed(model("qwen3_5"), tmp_path / "narrow", narrow)
    with pytest.raises(ModelError, match=r"'mtp.fc.weight' has shape \[32, 128\], but the config says \[64, 128\]"):
        LLM(str(path), speculative_config=FIXED)


def test_unknown_options(model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="unknown mtp option 'layers'"):
        LLM(str(model("qwen3_5")), speculative_config=FIXED | {"layers": 2})
    with pytest.raises(ConfigError, match="draft_vocab_size must be at least 2, not 1"):
        LLM(str(model("qwen3_5")), speculative_config=FIXED | {"draft_vocab_size": 1})


def test_which_layer_is_meant(model: Callable[[str], Path]) -> None:
    """Of a model with gated delta nets it is like those with attention, and of one with windows like those."""
    for name, window in ("qwen3_5", ()), ("mellum", (9,)):
        (layer,) = mtp_layers(describe_model(str(model(name))))
        assert (layer.config.num_layers, layer.config.style.recurrent) == (1, None)
        assert layer.config.style.windows == window
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mtp_layers(describe_model(str(model("deepseekv3"))))
