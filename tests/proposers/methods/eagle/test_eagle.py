"""EAGLE-type heads: whatever way an engine came there, a draft follows from the known tokens alone.

Every draft that an engine makes is compared with a twin's, which computes the target's states and all pairs anew.
What holds for all heads is in `test_head_proposers.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import assert_same, run, wish_in_turn, with_params
from conftest import MakeLLM, Pair, Plain
from crossing import crossed
from eagles import assert_right, eagle_config, random_eagle, random_eagle3, write
from fitting import fitted
from watching import Watch, asks, head_of

METHODS = ("eagle", "eagle3")


@pytest.mark.parametrize("method", METHODS)
def test_from_a_cached_prefix(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, method: str) -> None:
    """Of a prefix that the head has computed too, the last row runs once more; of another, all rows."""
    llm = make_llm(method, 4, block_size=4)
    whole = [with_params(ask, n=2) for ask in asks()]
    for wish, most in (({"enabled": False}, 0), (None, 40), (None, 4)):
        watch = Watch().over(llm)
        answers = run(llm, [with_params(ask, speculative=wish) for ask in whole], watch)
        assert_same(answers, plain("float32", whole))
        assert max(watch.rerun) <= most
        assert any(watch.rerun) == (most > 0)
        if most:
            assert_right(llm, fitted(method, models["float32"].target), watch.drafts)
    assert sum(a.metrics.cached_tokens for a in answers) > 150
    repeated = [n for n in watch.rerun if n]
    assert repeated.count(1) > len(repeated) / 2


@pytest.mark.parametrize("method", METHODS)
def test_shared_blocks_stay_as_they_are(make_llm: MakeLLM, method: str) -> None:
    """Not a bit of the target's keys and values changes where rows run once more."""
    llm = make_llm(method, 4, block_size=4)
    pool, cache = llm.engine._pool, llm.engine._worker._runner.cache
    run(llm, asks(speculative={"enabled": False}))
    named = [block for block, name in enumerate(pool._hash) if name is not None]
    for layer in cache:  # what is computed anew would be equal anyway; so mark what nobody reads any more
        layer.key[named] = layer.key[named] * 1.5
    before = [(layer.key[named].clone(), layer.value[named].clone()) for layer in cache]
    watch = Watch().over(llm)
    run(llm, asks(max_tokens=1), watch)
    (request,) = llm.engine.add(asks()[5].prompt, asks(max_tokens=3)[5].params)
    for _ in range(2):
        llm.engine.step()
    assert len(watch.plans[-2].spans[0].catch_up.rerun) > 8
    for layer, (key, value) in zip(cache, before, strict=True):
        assert torch.equal(layer.key[named], key)
        assert torch.equal(layer.value[named], value)
    llm.engine.abort(request)


@crossed(rows=(2048, 24, 9), method=METHODS)
def test_switched_off_and_on_again(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, method: str, rows: int
) -> None:
    off = {"enabled": False}
    llm = make_llm(method, 4, max_num_batched_tokens=rows)
    watch = Watch(wish_in_turn(None, off, off, {"num_speculative_tokens": 1}, None)).over(llm)
    answers = run(llm, asks(max_tokens=40), watch)
    assert_same(answers, plain("float32", asks(max_tokens=40)))
    assert max(watch.rerun) > (4 if rows > 9 else 0)
    for plan in watch.plans:
        assert sum(len(s.tokens) + len(s.draft) + len(s.catch_up.rerun) for s in plan.spans) <= rows
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


@pytest.mark.parametrize("method", METHODS)
def test_after_a_prediction_has_failed(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, method: str) -> None:
    """While a prediction holds the head makes no drafts, but sees what the target computes."""
    wanted = plain("float32", asks(temperature=0))
    texts = [answer.text[: len(answer.text) // 2] + " and then something else" for answer in wanted]
    predicted = [with_params(ask, prediction=text) for ask, text in zip(asks(temperature=0), texts, strict=True)]
    llm = make_llm(method, 4)
    watch = Watch().over(llm)
    assert_same(run(llm, predicted, watch), wanted)
    assert not any(watch.rerun)
    assert_right(llm, fitted(method, models["float32"].target), watch.drafts)


@pytest.mark.parametrize("name", ["eagle", "the target's output"])
def test_where_the_targets_logits_cannot_be_recorded(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for file in ("draft_output", "methods.eagle3.proposer"):
        monkeypatch.setattr(f"parlay.proposers.{file}.records_logits", lambda target: False)
    path = write(tmp_path / "head", *HEADS[name]())
    llm = make_llm(speculative_config={"model": str(path)})
    assert not head_of(llm).recordable
    watch = Watch().over(llm)
    run(llm, asks(max_tokens=6)[:4], watch)
    assert_right(llm, path, watch.drafts)


@pytest.mark.parametrize("name", ["eagle", "the target's output"])
def test_logits_of_all_passes_lie_in_the_same_memory(make_llm: MakeLLM, tmp_path: Path, name: str) -> None:
    """A recorded pass keeps all that it writes to, and there are hundreds; of a vocabulary each that is gigabytes."""
    head = head_of(make_llm(speculative_config={"model": str(write(tmp_path / "head", *HEADS[name]()))}))
    found = [head.logits(torch.ones(rows, 64)) for rows in (1, 2, 64)]
    assert len({logits.data_ptr() for logits in found}) == 1


# ----------------------------------------------------------------------------------------------------- all layouts


def _norms(*names: str, width: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: 1 + 0.3 * torch.randn(width, generator=generator) for name in names}


def _wide(states: int = 192) -> dict[str, torch.Tensor]:
    return random_eagle3(eagle_config(), states=states)


def _qkv_bias(layer: str) -> dict[str, torch.Tensor]:
    widths = {"q": 64, "k": 32, "v": 32}
    generator = torch.Generator().manual_seed(6)
    return {f"{layer}self_attn.{x}_proj.bias": torch.randn(n, generator=generator) for x, n in widths.items()}


def _second_layer(norm: str) -> dict[str, torch.Tensor]:
    second = random_eagle(eagle_config(num_hidden_layers=2))
    tensors = {name: t for name, t in second.items() if name.startswith("layers.1.")}
    tensors[f"layers.1.{norm}"] = tensors.pop("layers.1.input_layernorm.weight")
    return tensors


def speculators(**changes: Any) -> dict[str, Any]:
    methods = [{"proposal_type": "greedy", "speculative_tokens": 3}]
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": eagle_config(rope_theta=500.0),
        "draft_vocab_size": 257,
        "target_hidden_size": None,
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": methods},
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        **changes,
    }


# Some waves are stretched, some blended and some left as they are.
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

HEADS: dict[str, Callable[[], tuple[dict[str, Any], dict[str, torch.Tensor]]]] = {
    "eagle": lambda: (eagle_config(), random_eagle(eagle_config())),
    "eagle without bias": lambda: (eagle_config(bias=True), random_eagle(eagle_config(), bias=False)),
    "eagle with biases": lambda: (eagle_config(), random_eagle(eagle_config()) | _qkv_bias("layers.0.")),
    "eagle with an embedding": lambda: (eagle_config(), random_eagle(eagle_config(), embedding=True)),
    "eagle of two layers": lambda: (
        eagle_config(num_hidden_layers=2),
        random_eagle(eagle_config(num_hidden_layers=2)),
    ),
    "eagle of other rotation": lambda: (
        eagle_config(rope_parameters={"rope_type": "default", "rope_theta": 77.0}),
        random_eagle(eagle_config()),
    ),
    "eagle of Llama 3.1's rotation": lambda: (
        eagle_config(rope_parameters=LLAMA3),
        random_eagle(eagle_config()),
    ),
    "speculators with Llama 3.1's rotation": lambda: (
        speculators(transformer_layer_config=eagle_config(rope_parameters=LLAMA3)),
        random_eagle3(eagle_config(), layer="layers.0."),
    ),
    "eagle3": lambda: (eagle_config(), _wide()),
    "eagle3 with half the tokens": lambda: (
        eagle_config(draft_vocab_size=128),
        random_eagle3(eagle_config(), ids=range(1, 257, 2)),
    ),
    "eagle3 with biases": lambda: (eagle_config(), _wide() | _qkv_bias("midlayer.")),
    "eagle3 with head norms": lambda: (
        eagle_config(),
        _wide() | _norms("midlayer.self_attn.q_norm.weight", "midlayer.self_attn.k_norm.weight", width=16),
    ),
    "eagle3 inside eagle_config": lambda: (
        eagle_config(
            architectures=["LlamaForCausalLMEagle3"],
            eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "norm_before_fc": True},
        ),
        _wide() | _norms("input_norm.weight", width=192),
    ),
    "eagle3 of one state": lambda: (eagle_config(eagle_aux_hidden_state_layer_ids=[3, 3]), _wide(64)),
    "eagle3 of two layers": lambda: (
        eagle_config(num_hidden_layers=2),
        _wide() | _second_layer("hidden_norm.weight"),
    ),
    "speculators": lambda: (speculators(), random_eagle3(eagle_config(), layer="layers.0.")),
    "speculators with all norms": lambda: (
        speculators(norm_before_residual=False, norm_before_fc=True, fc_norm=True, norm_output=True),
        random_eagle3(eagle_config(), layer="layers.0.")
        | _norms("fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight")
        | _norms("input_norm.weight", width=192),
    ),
    "speculators of two layers": lambda: (
        speculators(transformer_layer_config=eagle_config(num_hidden_layers=2)),
        random_eagle3(eagle_config(), layer="layers.0.") | _second_layer("input_layernorm.weight"),
    ),
    "the target's output": lambda: (
        eagle_config(),
        {name: t for name, t in _wide().items() if name != "lm_head.weight"},
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_every_layout(make_llm: MakeLLM, tmp_path: Path, name: str) -> None:
    config, tensors = HEADS[name]()
    path = write(tmp_path / "head", config, tensors)
    llm = make_llm(speculative_config={"model": str(path)})
    assert llm.engine.methods[1] == ("eagle" if name.startswith("eagle ") or name == "eagle" else "eagle3")
    assert head_of(llm).default_length == (3 if name.startswith("speculators") else 5)
    watch = Watch().over(llm)
    run(llm, asks(max_tokens=5)[:4], watch)
    assert_right(llm, path, watch.drafts)


def test_a_narrower_head(make_llm: MakeLLM, tmp_path: Path) -> None:
    """Of another width than the target it needs an embedding of its own, and has one."""
    config = eagle_config(hidden_size=32, target_hidden_size=64)
    tensors = random_eagle3(config) | {
        "embed_tokens.weight": random_eagle(config, embedding=True)["embed_tokens.weight"]
    }
    path = write(tmp_path / "head", config, tensors)
    llm = make_llm(speculative_config={"model": str(path)})
    watch = Watch().over(llm)
    run(llm, asks(max_tokens=5)[:4], watch)
    assert_right(llm, path, watch.drafts)
