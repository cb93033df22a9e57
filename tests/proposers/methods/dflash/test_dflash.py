"""DFlash heads: every draft that an engine makes is a reference's, which computes states and contexts anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import assert_same, preempt_every_third_step, run, wish_in_turn, with_params
from blocks import BlockTwin, block_config, random_block, twin_for, write_head
from checkpoints import write_llama
from conftest import MakeLLM, Pair, Plain
from eagles import Tensors, assert_drafts
from fitting import fitted
from heads import serve_head
from safetensors.torch import load_file
from towers import write_tower
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache
from watching import Watch, asks, head_of

from parlay import LLM, ConfigError, ModelError

Head = tuple[dict[str, Any], Tensors]


def authors(inner: dict[str, Any] | None = None, *, bias: bool = False, **changes: Any) -> Head:
    config = block_config(**changes)
    config["dflash_config"].update(inner or {})
    return config, random_block(config, bias=bias)


def speculators(**changes: Any) -> Head:
    """Return a head as the library writes it, with a reduced vocabulary and a layer that sees little."""
    layers = {key: value for key, value in block_config().items() if key not in ("dflash_config", "block_size")}
    layers |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5}
    ids = torch.arange(0, 257, 2)
    config = {
        "speculators_model_type": "dflash",
        "architectures": ["DFlashSpeculator"],
        "speculators_config": {"algorithm": "dflash", "proposal_methods": [proposal]},
        "transformer_layer_config": layers,
        "aux_hidden_state_layer_ids": [1, 2, 3],
        "mask_token_id": 7,
        "block_size": 8,
        "draft_vocab_size": len(ids),
        **changes,
    }
    tensors = random_block(config)
    tensors["lm_head.weight"] = torch.randn(len(ids), 64, generator=torch.Generator().manual_seed(1))
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(257, dtype=torch.bool).index_fill(0, ids, True)
    return config, tensors


def assistant(window: int = 7, **changes: Any) -> Head:
    config, tensors = authors(
        architectures=["MuseGlimmerAssistantModel"],
        model_type="muse_glimmer_assistant",
        block_size=6,
        mask_token_id=250,
        target_layer_ids=[0, 1, 2],
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=window,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **changes,
    )
    del config["dflash_config"]
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    return config, {names.get(name, name): tensor for name, tensor in tensors.items()}


def with_sinks() -> Head:
    config, tensors = authors({"use_swa": True, "swa_window_size": 16, "causal": False, "attention_value_scale": 0.5})
    for i in range(2):
        tensors[f"layers.{i}.self_attn.attention_sink_bias"] = torch.randn(4)
    return config, tensors


def first_layer_renamed() -> Head:
    config, tensors = authors(is_causal=True)
    tensors["embed_tokens.weight"] = torch.randn(257, 64, generator=torch.Generator().manual_seed(3))
    return config, {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}


HEADS: dict[str, Callable[[], Head]] = {
    "authors": authors,
    "speculators": speculators,
    "speculators, seeing ahead": lambda: speculators(sliding_window_non_causal=True),
    "assistant": assistant,
    "sinks": with_sinks,
    "neighbours turn": lambda: authors(is_neox_style=False, partial_rotary_factor=0.5, bias=True),
    "first row predicts": lambda: authors({"sample_from_anchor": True}, block_size=5, num_hidden_layers=1),
    "scales": lambda: authors(
        {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 5.0}
    ),
    "first layer renamed": first_layer_renamed,
}


@pytest.mark.parametrize("window", [64, 7])
def test_the_reference_is_transformers(tmp_path: Path, window: int) -> None:
    """So is the twin, with which drafts are compared."""
    config, tensors = assistant(window, num_key_value_heads=2)
    twin = BlockTwin(write_head(tmp_path, config, tensors), torch.randn(257, 64), torch.randn(257, 64))
    known, tokens = torch.randn(19, 192).double(), list(range(20))
    theirs = MuseGlimmerAssistantConfig.from_dict(config)
    model = MuseGlimmerAssistantModel(theirs).double().eval()
    model.load_state_dict({name: tensor.double() for name, tensor in tensors.items()})
    cache = DFlashCache(config=theirs)
    cache.activate_past_recording()
    cache.set_previous_accepted_tokens(len(known))
    with torch.no_grad():
        found = model(
            noise_embeds=twin.embedding[[tokens[-1], *[250] * 5]][None],
            context_hidden_states=known[None],
            position_ids=torch.arange(25)[None],
            attention_mask=torch.ones(1, 25, dtype=torch.long),
            past_key_values=cache,
        ).last_hidden_state[0]
    torch.testing.assert_close(twin.states(tokens, known), found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_right(tmp_path: Path, target: Path, name: str) -> None:
    path = write_head(tmp_path, *HEADS[name]())
    llm, watch = serve_head(target, path), Watch()
    run(llm, asks(max_tokens=10), watch)
    twin = twin_for(llm, path)
    assert_drafts(llm, twin, watch.drafts)
    proposed = 5 if "speculators" in name else twin.block - (not twin.anchored)
    assert max(len(noted.draft) for noted in watch.drafts.values()) == min(proposed, 8)


def test_muse_glimmer_with_its_assistant(tmp_path: Path) -> None:
    """It reads embeddings as they are stored, which the target itself normalises."""
    target = tmp_path / "target"
    write_tower(target, "muse_glimmer")
    path = write_head(tmp_path, *assistant())
    llm, watch = serve_head(target, path), Watch()
    found = run(llm, asks(max_tokens=10), watch)
    lent = load_file(target / "model.safetensors")
    twin = BlockTwin(path, lent["model.language_model.embed_tokens.weight"], lent["lm_head.weight"])
    assert_drafts(llm, twin, watch.drafts)
    plain = LLM(str(target), dtype="float32", max_model_len=128, speculative_config=None)
    assert_same(run(plain, asks(max_tokens=10)), found)


def test_a_mask_of_its_own(tmp_path: Path, target: Path) -> None:
    """Its token is beyond the target's; the file with its embedding holds tensors and numbers alone."""
    mask = torch.randn(64, generator=torch.Generator().manual_seed(5))
    path = write_head(tmp_path, *authors({"mask_token_id": 500}))
    with pytest.raises(ModelError, match=r"the mask token 500 is beyond the target's 257 tokens, and mask_emb"):
        serve_head(target, path)
    for content in (mask, {"embedding": mask, "mask_token_id": 500}):
        torch.save(content, path / "mask_embedding.pt")
        llm, watch = serve_head(target, path), Watch()
        run(llm, asks(max_tokens=6)[:3], watch)
        twin = twin_for(llm, path)
        twin.own_mask = mask
        assert_drafts(llm, twin, watch.drafts)
    for wrong, told in (
        ({"embedding": mask, "mask_token_id": 4}, "of the mask's token 4, but the config says 500"),
        (mask[1:], "must hold the 64 numbers"),
        ({"embedding": 5}, "must hold the 64 numbers"),
        (mask / 0, "infinite"),
        (Path("x"), "holds other objects than tensors"),
    ):
        torch.save(wrong, path / "mask_embedding.pt")
        with pytest.raises(ModelError, match=told):
            serve_head(target, path)


@pytest.mark.parametrize("rows", [24, pytest.param(2048, marks=pytest.mark.soak)])
def test_whatever_happens_on_the_way(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, rows: int) -> None:
    """Cached prefixes, steps without it, preemptions: a draft follows from the known tokens alone."""
    switch = wish_in_turn(None, {"enabled": False}, {"num_speculative_tokens": 1}, None)
    llm = make_llm("dflash", 4, max_num_batched_tokens=rows, block_size=4)
    path = fitted("dflash", models["float32"].target)
    for meddle in (switch, preempt_every_third_step(), None):
        watch = Watch(meddle).over(llm)
        answers = run(llm, asks(max_tokens=16), watch)
        assert_same(answers, plain("float32", asks(max_tokens=16)))
        assert_drafts(llm, twin_for(llm, path), watch.drafts, most=12)
    assert sum(answer.metrics.cached_tokens for answer in answers) > 80
    assert max(watch.rerun) > 0


def test_blocks_reach_beyond_the_longest_text(make_llm: MakeLLM, plain: Plain) -> None:
    long = [with_params(ask, max_tokens=100) for ask in asks(temperature=0)[-1:]]
    assert_same(run(make_llm("dflash"), long), plain("float32", long))


def test_drafts_of_several_turns(make_llm: MakeLLM, plain: Plain) -> None:
    """Sixteen requests at once are more than a pass has rows for."""
    many = [with_params(ask, n=3) for ask in asks(max_tokens=8)]
    llm = make_llm("dflash", 3)
    assert head_of(llm).rows == 16
    assert_same(run(llm, many), plain("float32", many))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"config": {"num_speculative_tokens": 16}},
            "num_speculative_tokens=16 is more than the 15 tokens that 'dfl",
        ),
        ({"target": {"hidden_size": 96, "head_dim": 24}}, "needs hidden states of width 64 but the target"),
        ({"target": {"vocab_size": 900}}, "needs a vocabulary of 257"),
        ({"target": {"num_hidden_layers": 2}}, "reads its target after 3 layers, but that has only 2"),
        ({"without": "layers.1.mlp.up_proj.weight"}, "lacks the tensor 'layers.1.mlp.up_proj.weight'"),
        ({"without": "fc.weight"}, "lacks the tensor 'fc.weight'"),
        ({"inner": {"target_layer_ids": [2, 1]}}, "must list numbers of layers, each above the one before"),
        ({"inner": {"mask_token_id": None}}, "lacks the key 'mask_token_id'"),
        ({"inner": {"block_size": 1}}, "block_size must be a whole number of at least 2"),
        ({"inner": {"block_size": 65}}, "block_size=65 is not supported"),
        ({"inner": {"use_swa": True, "swa_window_size": 9}}, "a window of 9 keys is smaller than its block"),
        ({"inner": {"use_swa": True}}, "swa_window_size"),
        ({"inner": {"causal": 1}}, "causal must be true or false"),
        ({"inner": {"output_multiplier": 0}}, "output_multiplier must be a number"),
        ({"inner": {"use_aux_hidden_state": False}}, "use_aux_hidden_state=False is not supported"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types must list 2 times"),
        ({"dflash_config": []}, "lacks the key 'mask_token_id'"),
        ({"dflash_config": [1]}, "dflash_config must be an object"),
        ({"draft_vocab_size": 100}, "lacks the tensor 'd2t'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    target = write_llama(tmp_path / "target", **changes.pop("target", {}))
    options, gone = changes.pop("config", {}), changes.pop("without", None)
    config, tensors = authors()
    config["dflash_config"].update(changes.pop("inner", {}))
    path = write_head(tmp_path / "head", {**config, **changes}, {n: t for n, t in tensors.items() if n != gone})
    with pytest.raises((ConfigError, ModelError), match=told):
        serve_head(target, path, **options)


def test_offsets_of_a_vocabulary_beyond_the_targets(tmp_path: Path, target: Path) -> None:
    config, tensors = speculators()
    tensors["d2t"] += 200
    with pytest.raises(ModelError, match="d2t maps to token ids beyond the target's 257"):
        serve_head(target, write_head(tmp_path, config, tensors))


def test_a_tree_may_have_more_nodes_than_a_block(tmp_path: Path, target: Path) -> None:
    path = write_head(tmp_path, *authors({"block_size": 4}))
    tree = {"tree": {"width": 4, "depth": 3}, "num_speculative_tokens": 20}
    llm, watch = serve_head(target, path, **tree), Watch()
    answers = run(llm, asks(max_tokens=8), watch)
    assert_same(
        answers,
        run(LLM(str(target), dtype="float32", max_model_len=128, speculative_config=None), asks(max_tokens=8)),
    )
    drafts = [noted.draft for noted in watch.drafts.values()]
    assert any(not draft.is_chain for draft in drafts)
    assert max(len(draft) for draft in drafts) > 4
    with pytest.raises(ConfigError, match=r"tree depth 4 exceeds the 3 tokens that 'dflash' can draft in a row"):
        serve_head(target, path, tree={"width": 4, "depth": 4})


def test_its_shapes_are_read_before_any_weights(tmp_path: Path, target: Path) -> None:
    path = write_head(tmp_path, *authors())
    head = head_of(serve_head(target, path))
    stored = sum(tensor.nbytes for tensor in load_file(path / "model.safetensors").values())
    assert head.weight_bytes == stored + (64 * 4 + 8) * 257
    assert json.loads((path / "config.json").read_text())["block_size"] == head.max_draft_tokens + 1
