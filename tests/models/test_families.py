"""Logits against the transformers library of every family, and of classes that no family serves."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from families import FAMILIES, OTHERS, reference, write_family
from families_in_turn import ONE_EACH, covering, distinctions, in_turn
from pieces import LENGTH, assert_speculation_changes_no_token, logits_in_pieces, make_runner, random_tokens
from torch import Tensor

from parlay import ModelError
from parlay.models.select import describe_model
from parlay.runner.runner import ModelRunner

CUTS = ([], [1, 2, 30, 47, 48], list(range(1, LENGTH)))


Expected = Callable[[str], Tensor]


@pytest.fixture(scope="module")
def expected(checkpoint: Callable[[str], Path]) -> Expected:
    """Transformers' logits of families by name, each computed once."""
    return cache(lambda name: reference(checkpoint(name), random_tokens()))


def assert_near(runner: ModelRunner, expected: Tensor) -> None:
    """In one piece and in several; that more pieces have the same bits is a test of its own."""
    assert expected.std() > 0.3
    for cuts in CUTS[:2]:
        torch.testing.assert_close(logits_in_pieces(runner, random_tokens(), cuts), expected, atol=1e-4, rtol=0)


def assert_as_transformers(path: Path) -> None:
    assert_near(make_runner(path), reference(path, random_tokens()))


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_equal_to_transformers(
    checkpoint: Callable[[str], Path], expected: Expected, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And small passes are recorded, but for those of classes without a family."""
    runner = make_runner(checkpoint(name))
    assert_near(runner, expected(name))
    assert bool(runner._graphs._graphs) == (name in FAMILIES and not runner.kernels.name.startswith("reference"))
    assert not [record for record in caplog.records if record.name.startswith("parlay")]


@in_turn(tuple(FAMILIES), others=["cohere"])
def test_the_twins_equal_transformers(
    checkpoint: Callable[[str], Path], expected: Expected, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = logits_in_pieces(make_runner(checkpoint(name), kernels="reference"), random_tokens(), [33])
    torch.testing.assert_close(found, expected(name), atol=1e-4, rtol=0)
    assert not [record for record in caplog.records if record.name.startswith("parlay")]


@pytest.mark.parametrize("null", [False, True], ids=["missing", "null"])
def test_factors_of_hyperclovax_that_are_not_given(tmp_path: Path, null: bool) -> None:
    """They have defaults; transformers' class, which writes all, takes null for one of them alone."""
    path = write_family(tmp_path / "model", "hyperclovax-plain")
    raw = json.loads((path / "config.json").read_text())
    expected = reference(path, random_tokens())
    names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    rest = {key: value for key, value in raw.items() if key not in names}
    (path / "config.json").write_text(json.dumps({**rest, **dict.fromkeys(names)} if null else rest))
    assert_near(make_runner(path), expected)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "one key head": {"num_key_value_heads": 1},
    "all key heads": {"num_key_value_heads": 4},
    "no key head count": {"num_key_value_heads": None},
    "wide heads": {"head_dim": 32},
    "default head_dim": {"head_dim": None},
    "llama3": {"rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "llama3 of transformers 5": {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}, "rope_theta": None},
    "theta of transformers 5": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
        "rope_theta": None,
    },
    "old type key": {"rope_scaling": {**{k: v for k, v in LLAMA3.items() if k != "rope_type"}, "type": "llama3"}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_llamas_of_every_shape(tmp_path: Path, shape: str) -> None:
    path = write_llama(tmp_path, **SHAPES[shape])
    assert_as_transformers(path)


def test_biases_beside_experts(tmp_path: Path) -> None:
    path = write_family(tmp_path, "nemotronh-latents", mlp_bias=True)
    assert_as_transformers(path)


# In the others torch computes products and hyperbolic tangents, which may or may not be exact on a machine.
EXACT = [name for name in OTHERS if name not in ("flexolmo", "vaultgemma")]


@in_turn(tuple(FAMILIES), turn=20, others=EXACT, dtype=[torch.float32, torch.bfloat16])
def test_pieces_give_the_same_bits(checkpoint: Callable[[str], Path], name: str, dtype: torch.dtype) -> None:
    runner, tokens = make_runner(checkpoint(name), dtype), random_tokens(seed=1)
    whole = logits_in_pieces(runner, tokens, [])
    for cuts in CUTS[1:]:
        assert torch.equal(logits_in_pieces(runner, tokens, cuts), whole)


@in_turn(tuple(FAMILIES), turn=40, others=["gpt2", "cohere"])
def test_bfloat16_is_near(checkpoint: Callable[[str], Path], name: str) -> None:
    path, tokens = checkpoint(name), random_tokens(seed=2)
    found = logits_in_pieces(make_runner(path, torch.bfloat16), tokens, [])
    expected = reference(path, tokens)
    assert found.dtype is torch.float32
    # A router's near ties fall otherwise now and then, so most rows are looked at, not all.
    error = (found - expected).pow(2).mean(1).sqrt()
    assert error.median() < 0.05 * expected.std()


@pytest.mark.parametrize("pairs", [False, True])
def test_nothing_is_left_out_where_families_take_turns(pairs: bool) -> None:
    names = tuple(FAMILIES)
    some = covering(names, pairs=pairs)
    assert len(some) < len(names) / 2
    found = set().union(*(distinctions(name, pairs=pairs) for name in some))
    assert all(distinctions(name, pairs=pairs) <= found for name in names)
    assert (("style.nope=False", "style.parallel=True") in found) == pairs
    for one in (
        "style.recurrent: MambaLayers",
        "style.experts.shared",
        "style.windows=0",
        "rotary.kind=yarn",
        "tied",
    ):
        assert (one,) in found


@in_turn(ONE_EACH, pairs=True)
def test_speculation_changes_no_token(tmp_path: Path, name: str) -> None:
    assert_speculation_changes_no_token(tmp_path, name, 20)


REFUSALS: tuple[tuple[str, dict[str, Any], str], ...] = (
    *((name, {"hidden_act": "gelu"}, "hidden_act") for name in ("mistral", "qwen2", "qwen3", "granite", "phi3")),
    *((name, {"hidden_act": "relu"}, "hidden_act") for name in ("mixtral", "qwen3moe")),
    *((name, {"hidden_activation": "gelu"}, "hidden_activation") for name in ("gemma2", "gemma3")),
    *((name, {"rope_parameters": {"rope_type": "no such"}}, "rope_type") for name in ("mistral", "gemma3")),
    *((name, {"attention_bias": True}, "attention_bias") for name in ("mistral", "phi3", "gemma2", "mixtral")),
    *((name, {"sliding_window": -3}, "sliding_window") for name in ("mistral", "gemma2", "phi3")),
    ("mistral", {"sliding_window": 2.5}, "sliding_window"),
    ("qwen2", {"attention_bias": False}, "attention_bias"),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": "all"}, "max_window_layers"),
    ("qwen3", {"use_sliding_window": 1}, "use_sliding_window"),
    ("granite", {"logits_scaling": 0}, "logits_scaling"),
    ("granite", {"residual_multiplier": "big"}, "residual_multiplier"),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": -1}}, "partial_rotary_factor"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    ("gemma2", {"attn_logit_softcapping": -1}, "attn_logit_softcapping"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
    ("qwen3moe", {"mlp_only_layers": 1}, "mlp_only_layers"),
    ("qwen3moe", {"moe_intermediate_size": None}, "moe_intermediate_size"),
    ("opt", {"activation_function": "gelu"}, "activation_function"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
    ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim"),
    *(
        ("graniteswa", {"layer_rope_theta": value}, "layer_rope_theta")
        for value in (7, [1.0], [1.0, -1.0, 1.0, 1.0, 1.0])
    ),
    ("graniteswa", {"layer_rope_theta": [1.0, 2.0, 3.0, 2.0, 1.0]}, "one base for layers with a window"),
    ("granitemoeswa", {"sliding_window": 0}, "sliding_window"),
    *(("afmoe", {"score_func": "softmax"}, "score_func"), ("afmoe", {"route_norm": False}, "route_norm")),
    ("laguna", {"gating": False}, "gating must be per-head or per-element"),
    ("laguna", {"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"),
    ("laguna", {"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input"),
    *(
        ("laguna", {"num_attention_heads_per_layer": value}, "a multiple of 2")
        for value in (4, [4, 4], [4, 3, 4], [4, 0, 4])
    ),
    ("step3p5", {"num_sliding_attention_heads": 5}, "num_sliding_attention_heads must be a multiple of 2"),
    ("step3p5", {"attention_other_setting": {"head_dim": 24}}, "head_dim"),
    ("step3p5", {"mlp_layer_types": None, "moe_layers_enum": "3 to 5"}, "moe_layers_enum must list layers"),
    *(("step3p5", {"swiglu_limits": value}, "swiglu_limits") for value in (0.5, [0.5], [0.5, -1, 0, 0], ["a"] * 4)),
    *(("step3p5", {key: True}, key) for key in ("attention_bias", "mlp_bias")),
    ("step3p5", {"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate"),
    ("mimov2flash", {"v_head_dim": 12}, "v_head_dim is a multiple of 8"),
    ("mimov2flash", {"swa_num_key_value_heads": 3}, "3 heads of values"),
    *(
        ("mimov2flash", {key: value}, key)
        for key, value in (
            *(("swa_v_head_dim", 8), ("swa_num_attention_heads", 8), ("add_full_attention_sink_bias", True)),
            *(("scoring_func", "softmax"), ("n_shared_experts", 1), ("attention_value_scale", "half")),
            ("hybrid_layer_pattern", [0, 1]),
        )
    ),
    ("laguna", {"mlp_layer_types": ["dense", "wide", "dense"]}, "must list sparse or dense for each of 3 layers"),
    ("lfm3", {"layer_types": ["conv"]}, "must list conv, full_attention or sliding_attention for each of 6 layers"),
    ("lfm3", {"conv_L_cache": 9}, "conv_L_cache"),
    ("hunyuanmoe", {"moe_topk": [3, 2, 3]}, "the same in all of 3 layers"),
    ("hunyuanmoe", {"use_cla": True}, "use_cla"),
    ("apertus", {"hidden_act": "silu"}, "hidden_act"),
    ("hyv3", {"mlp_layer_types": ["dense", "sparse"]}, "must list dense or sparse for each of 3 layers"),
    ("hyv3", {"route_norm": False}, "route_norm"),
    (
        "olmohybrid",
        {"layer_types": ["linear_attention"] * 3},
        "for each of 4 layers",
    ),
    ("olmohybrid", {"linear_key_head_dim": 12}, "heads of linear attention of 12"),
    ("llama4", {"num_experts_per_tok": 2}, "num_experts_per_tok"),
    ("llama4", {"layer_types": ["sliding_attention"] * 4}, "must list chunked_attention or full_attention"),
    ("llama4", {"moe_layers": 3}, "moe_layers must list numbers of layers"),
    ("llama4", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("cohere2moe", {"expert_selection_fn": "sinkhorn"}, "expert_selection_fn must be softmax or sigmoid"),
    ("cohere2moe", {"shared_expert_combination_strategy": "product"}, "shared_expert_combination_strategy"),
    ("dots1", {"max_window_layers": "all", "layer_types": None}, "max_window_layers"),
    ("hunyuanmoe", {"moe_intermediate_size": [32, 32, 32]}, "moe_intermediate_size"),
)


@pytest.mark.parametrize(("name", "changes", "word"), REFUSALS, ids=str)
def test_refusals_name_the_key(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, changes: dict[str, Any], word: str
) -> None:
    config = json.loads((checkpoint(name) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    describe_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=word):
        describe_model(str(tmp_path))


def test_a_step_as_it_was_released(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Its authors' keys, which the library turns into its own; lists go on for layers that predict further tokens."""
    config = json.loads((checkpoint("step3p5") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = describe_model(str(tmp_path))
    near = ["sliding_attention"] * 2
    scaling = dict(config["rope_parameters"]["full_attention"])
    del scaling["rope_theta"], scaling["partial_rotary_factor"]
    for key in ("rope_parameters", "mlp_layer_types", "num_sliding_attention_heads", "per_layer_config"):
        del config[key]
    for own, key in (("num_key_value_heads", "num_attention_groups"), ("n_routed_experts", "moe_num_experts")):
        config[key] = config.pop(own)
    config |= {"moe_top_k": config.pop("num_experts_per_tok"), "share_expert_dims": config.pop("share_expert_dim")}
    config |= {"num_nextn_predict_layers": 2, "layer_types": config["layer_types"] + near, "moe_layers_enum": "2,3"}
    config |= {key: config[key] + [0.0, 0.0] for key in ("swiglu_limits", "swiglu_limits_shared")}
    config |= {"rope_theta": [5000.0, 500.0, 500.0, 5000.0, 500.0, 500.0], "rope_scaling": scaling}
    config |= {"partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0, 1.0], "yarn_only_types": ["full_attention"]}
    config["attention_other_setting"] = {"num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = describe_model(str(tmp_path))
    assert found.raw["mtp_layer_types"] == near
    assert replace(found, raw=expected.raw) == expected


def test_a_mimo_as_it_was_released(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Its authors' code has other keys, which the library has not; their window leaves a token itself out."""
    config = json.loads((checkpoint("mimov2flash") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = describe_model(str(tmp_path))
    for key in ("layer_types", "mlp_layer_types", "rope_parameters", "sliding_window", "rms_norm_eps"):
        del config[key]
    config |= {"hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "sliding_window_size": 12}
    config |= {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334, "layernorm_epsilon": 1e-5}
    config |= {"swa_num_key_value_heads": 2, "swa_head_dim": 24, "swa_v_head_dim": 16, "swa_num_attention_heads": 4}
    config |= {"add_swa_attention_sink_bias": True, "routed_scaling_factor": None, "topk_method": "noaux_tc"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert replace(describe_model(str(tmp_path)), raw=expected.raw) == expected


def test_older_names_of_rotary_keys(tmp_path: Path) -> None:
    """What transformers 4 wrote for Gemma 3 and Phi-3 means what transformers 5 writes."""
    path = write_family(tmp_path / "gemma3", "gemma3")
    tokens = random_tokens()
    expected = logits_in_pieces(make_runner(path), tokens, [])
    config = json.loads((path / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"rope_theta": 50000.0, "rope_local_base_freq": 500.0}
    config["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    (path / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits_in_pieces(make_runner(path), tokens, []), expected)
    path = write_family(tmp_path / "phi3", "phi3-partial")
    expected = logits_in_pieces(make_runner(path), tokens, [])
    config = json.loads((path / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config |= {"rope_theta": scaling["rope_theta"], "partial_rotary_factor": scaling["partial_rotary_factor"]}
    config["rope_scaling"] = {"type": "su", **{k: scaling[k] for k in ("short_factor", "long_factor")}}
    (path / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits_in_pieces(make_runner(path), tokens, []), expected)


def test_what_tells_families_apart_is_no_detail(tmp_path: Path) -> None:
    """Each of these moves logits far beyond the tolerance of the comparison with transformers."""
    tokens = random_tokens()
    for name, changes in (
        ("mistral", {"sliding_window": None}),
        ("llama-yarn", {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
        ("llama-biases", {"rope_scaling": LLAMA3}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("granite", {"residual_multiplier": 1.0}),
        ("phi3-partial", {"sliding_window": None}),
    ):
        path = write_family(tmp_path / f"{name}-{next(iter(changes))}", name)
        before = logits_in_pieces(make_runner(path), tokens, [])
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        assert (logits_in_pieces(make_runner(path), tokens, []) - before).abs().max() > 0.05, (name, changes)


def test_longest_contexts(tmp_path: Path) -> None:
    for scaling, length in (
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "dynamic", "factor": 2.0}, 1024),
        ({"rope_type": "linear", "factor": 2.0}, 1024),
        ({"rope_type": "default"}, 512),
    ):
        path = write_llama(tmp_path / str(scaling["rope_type"]), rope_scaling=scaling)
        assert describe_model(str(path)).max_position == length
