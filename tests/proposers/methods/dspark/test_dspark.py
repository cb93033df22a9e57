"""DSpark heads: what is more in them than in DFlash's, against the `speculators` library and a twin."""

from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, assert_same, run
from blocks import SparkTwin, block_config, markov_tensors, random_block, twin_for, write_head
from conftest import MakeLLM, Plain
from eagles import Tensors, assert_drafts
from heads import serve_head
from safetensors.torch import load_file
from watching import Watch, asks

from parlay import ConfigError, ModelError
from parlay.kernels.select import select_kernels
from parlay.models.layers import OutputLayer
from parlay.proposers.branching import _trusted
from parlay.proposers.methods.dspark.markov import KINDS, Inner, Markov
from parlay.weights.weight import Weight

GOLDENS = Path(__file__).parents[3] / "goldens" / "dspark"
Head = tuple[dict[str, Any], Tensors]


def spark(kind: str = "vanilla", *, rank: int = 8, **changes: Any) -> Head:
    """Return a head as its authors write it."""
    config = block_config(
        architectures=["Qwen3DSparkModel"],
        mask_token_id=255,
        target_layer_ids=[0, 1, 2],
        block_size=7,
        markov_rank=rank,
        markov_head_type=kind,
        **changes,
    )
    del config["dflash_config"]
    return config, {**random_block(config), **markov_tensors(kind, 64, rank, 257, 257)}


def speculators(kind: str) -> Head:
    """Return a head as the library writes it, with a reduced vocabulary; its first row predicts nothing."""
    given, _ = spark()
    own = ("architectures", "mask_token_id", "target_layer_ids", "block_size", "markov_rank", "markov_head_type")
    ids = torch.arange(1, 257, 2)
    config = {
        "speculators_model_type": "dspark",
        "architectures": ["DSparkSpeculator"],
        "transformer_layer_config": {key: value for key, value in given.items() if key not in own},
        "aux_hidden_state_layer_ids": [1, 2, 3],
        "mask_token_id": 7,
        "block_size": 6,
        "draft_vocab_size": len(ids),
        "markov_rank": 8,
        "markov_head_type": kind,
    }
    tensors = {**random_block(config), **markov_tensors(kind, 64, 8, 257, len(ids))}
    tensors["lm_head.weight"] = torch.randn(len(ids), 64, generator=torch.Generator().manual_seed(1))
    tensors["d2t"] = ids - torch.arange(len(ids))
    return config, tensors


def without_confidence() -> Head:
    config, tensors = spark(sample_from_anchor=False)
    return config, {name: tensor for name, tensor in tensors.items() if "confidence" not in name}


HEADS = {
    **{kind: lambda kind=kind: spark(kind) for kind in KINDS},
    **{f"speculators, {kind}": lambda kind=kind: speculators(kind) for kind in KINDS},
    "without confidence": without_confidence,
}


@pytest.mark.parametrize("kind", KINDS)
def test_biases_are_those_of_the_library(kind: str) -> None:
    golden = load_file(GOLDENS / f"{kind}.safetensors")
    name = {"gated": "gate_proj", "rnn": "joint_proj"}.get(kind)
    inner = None if name is None else Inner(*(golden[f"markov_head.{name}.{part}"] for part in ("weight", "bias")))
    table, made = golden["markov_head.markov_w1.weight"], golden["markov_head.markov_w2.weight"]
    markov = Markov(kind, table, OutputLayer(select_kernels(), Weight.of(made)), inner)
    state, out = torch.zeros(1, markov.rank), torch.zeros(1, len(made))
    sure = Inner(golden["confidence_head.proj.weight"], golden["confidence_head.proj.bias"])
    for i, (hidden, token) in enumerate(zip(golden["given.hidden"], golden["given.before"], strict=True)):
        before = markov.entries(token[None])
        found = markov.bias(before, hidden[None], state, out)[0]
        torch.testing.assert_close(found.double(), golden["found.bias"][i], rtol=0, atol=1e-4)
        confidence = sure(hidden[None], before).sigmoid().double().view(())
        torch.testing.assert_close(confidence, golden["found.confidence"][i], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_right(tmp_path: Path, target: Path, name: str) -> None:
    """So are the probabilities that the confidence head gives them."""
    path = write_head(tmp_path, *HEADS[name]())
    llm, watch = serve_head(target, path), Watch()
    run(llm, asks(max_tokens=10), watch)
    assert_drafts(llm, twin_for(llm, path, SparkTwin), watch.drafts)
    assert max(len(noted.draft) for noted in watch.drafts.values()) == {"s": 5, "w": 6}.get(name[0], 7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_path_of_a_tree_is_the_chain(tmp_path: Path, target: Path, kind: str) -> None:
    """Every node's children follow from it alone: along the first ones, from what a chain follows from."""
    path = write_head(tmp_path, *spark(kind))
    drafts = []
    for tree in ("off", {"width": 3, "depth": 4}):
        llm, watch = serve_head(target, path, tree=tree, num_speculative_tokens=7 if tree == "off" else 39), Watch()
        run(llm, asks(temperature=0, max_tokens=10), watch)
        drafts.append(watch.drafts)
    compared = 0
    for known, noted in drafts[1].items():
        draft, chain = noted.draft, drafts[0][known].draft if known in drafts[0] else None
        if chain is None:
            continue
        below, path_of = -1, []
        for token in chain.tokens[:4]:
            child = [i for i, of in enumerate(draft.parents) if of == below and draft.tokens[i] == token]
            if not child:
                break
            below = child[0]
            path_of.append(below)
            assert draft.probs is not None
            assert chain.probs is not None
            assert draft.probs[below] == pytest.approx(chain.probs[len(path_of) - 1], rel=1e-4)
        compared += len(path_of)
    assert compared > 40


def test_what_confidence_leaves_to_other_children() -> None:
    likely = torch.tensor([[0.5, 0.25, 0.1], [1.0, 0.0, 0.0], [0.2, 0.2, 0.1]])
    _trusted(likely, torch.tensor([0.8, 0.6, 0.1]))
    torch.testing.assert_close(likely, torch.tensor([[0.8, 0.1, 0.04], [0.6, 0.0, 0.0], [0.1, 0.1, 0.1]]))


def test_same_tokens_from_several_turns(make_llm: MakeLLM, plain: Plain) -> None:
    many = [Ask(ask.prompt, ask.params) for ask in asks(max_tokens=8)] * 2
    assert_same(run(make_llm("dspark", 4), many), plain("float32", many))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"markov_head_type": "tree"}, "markov_head_type='tree' is not supported; vanilla, gated, rnn are"),
        ({"markov_head_type": "gated"}, r"lacks the tensor 'markov_head\.gate_proj"),
        ({"markov_rank": 9}, r"markov_w1\.weight' has shape \[257, 8\], but the config says \[257, 9\]"),
        ({"markov_rank": 0}, "has a tensor that its config does not explain: 'markov_head"),
        ({"vocab_size": 400}, "needs a vocabulary of 400"),
    ],
)
def test_what_is_refused(tmp_path: Path, target: Path, changes: dict[str, Any], told: str) -> None:
    config, tensors = spark()
    with pytest.raises(ModelError, match=told):
        serve_head(target, write_head(tmp_path, {**config, **changes}, tensors))


def test_more_tokens_than_a_block_has(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens=8 is more than the 7 tokens that 'dspark' drafts"):
        serve_head(target, write_head(tmp_path, *spark()), num_speculative_tokens=8)
