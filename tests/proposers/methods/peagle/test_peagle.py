"""P-EAGLE heads: every draft that an engine makes is a twin's, which runs pairs and masks anew, in one pass."""

from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, assert_same, preempt_every_third_step, run
from conftest import MakeLLM, Plain
from eagles import Tensors, Twin, eagle_config, random_eagle3, write
from heads import serve_head
from safetensors.torch import load_file
from torch import Tensor
from watching import Known, Noted, Watch, asks, head_of

from parlay import LLM, ConfigError, ModelError
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner

MASK = 250


def masked(*, library: bool = False) -> tuple[dict[str, Any], Tensors]:
    """Return a head; in the library's layout the norms are of the residual stream too."""
    layers = eagle_config()
    config: dict[str, Any] = {**layers, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    if library:
        proposal = {"proposal_type": "greedy", "speculative_tokens": 10}
        config = {
            "speculators_model_type": "peagle",
            "speculators_config": {"algorithm": "peagle", "proposal_methods": [proposal]},
            "transformer_layer_config": layers,
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        }
    config |= {"architectures": ["PEagleSpeculator"], "mask_token_id": MASK}
    tensors = random_eagle3(layers)
    if library:
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    tensors["mask_hidden"] = torch.randn((1, 1, 192), generator=torch.Generator().manual_seed(6))
    return config, tensors


def logits_of(twin: Twin, tokens: Known, known: Tensor, length: int) -> Tensor:
    """Return the logits `[length, D]` of the tokens after those that are known, all from one pass."""
    pairs = torch.tensor([*tokens[1:], *[MASK] * (length - 1)])
    absent = twin.tensors["mask_hidden"].view(1, -1).expand(length - 1, -1)
    foreseen = twin.foresee(pairs, twin.states(torch.cat([known.double(), absent])))
    return twin.logits(foreseen[-length:])


def assert_right(llm: LLM, path: Path, drafts: dict[Known, Noted]) -> None:
    head, own = head_of(llm), llm.engine._worker._runner
    lent = load_file(own.model.config.path / "model.safetensors")
    twin = Twin(path, lent["model.embed_tokens.weight"], lent["lm_head.weight"])
    runner = ModelRunner(own.model, own.kernels, 128, 1)
    runner.tap(head.taps)
    assert drafts
    for known, noted in list(drafts.items())[:: -(-len(drafts) // 30)]:
        hidden = runner.forward(flatten([Segment(known[:-1], 0, range(128))], 1))
        states = torch.cat(list(head.sources(hidden, runner.tapped)), 1)
        logits = logits_of(twin, known, states, len(noted.draft))
        places = [noted.choose(row, len(known) + i, twin.ids) for i, row in enumerate(logits)]
        assert list(noted.draft.tokens) == [twin.token(place) for place in places]
        probs = [noted.likely(row, place) for row, place in zip(logits, places, strict=True)]
        assert noted.draft.probs == pytest.approx(probs, rel=2e-3)


@pytest.mark.parametrize("library", [False, True])
def test_drafts_are_right(tmp_path: Path, target: Path, library: bool) -> None:
    path = write(tmp_path / "head", *masked(library=library))
    llm, watch = serve_head(target, path), Watch(preempt_every_third_step())
    run(llm, asks(max_tokens=14), watch)
    assert_right(llm, path, watch.drafts)
    assert max(len(noted.draft) for noted in watch.drafts.values()) == (10 if library else 5)


def test_as_vllm_names_it(tmp_path: Path, target: Path) -> None:
    config, tensors = masked()
    head = write(tmp_path / "head", config, tensors)
    del config["mask_token_id"], tensors["mask_hidden"]
    other = write(tmp_path / "other", config | {"architectures": ["LlamaForCausalLMEagle3"]}, tensors)
    given = {"method": "eagle3", "num_speculative_tokens": 3}
    for more in ({}, {"parallel_drafting": True}):
        assert head_of(serve_head(target, head, **given, **more)).source == "peagle"
    assert head_of(serve_head(target, other, **given)).source == "eagle3"
    with pytest.raises(ConfigError, match="'eagle3'"):
        serve_head(target, other, **given, parallel_drafting=True)


def test_same_tokens_from_several_turns(make_llm: MakeLLM, plain: Plain) -> None:
    many = [Ask(ask.prompt, ask.params) for ask in asks(max_tokens=8)] * 2
    assert_same(run(make_llm("peagle", 8), many), plain("float32", many))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mask_token_id": None}, "lacks the key 'mask_token_id'"),
        ({"mask_token_id": 257}, "the mask token 257 is beyond the target's 257 tokens"),
    ],
)
def test_what_is_refused(tmp_path: Path, target: Path, changes: dict[str, Any], told: str) -> None:
    config, tensors = masked()
    with pytest.raises(ModelError, match=told):
        serve_head(target, write(tmp_path / "head", {**config, **changes}, tensors))


def test_without_what_stands_for_states(tmp_path: Path, target: Path) -> None:
    config, tensors = masked()
    del tensors["mask_hidden"]
    with pytest.raises(ModelError, match="lacks the tensor 'mask_hidden'"):
        serve_head(target, write(tmp_path / "head", config, tensors))


def test_more_tokens_than_it_was_trained_for(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens=9 is more than the 8 tokens that 'peagle' drafts"):
        serve_head(target, write(tmp_path / "head", *masked()), num_speculative_tokens=9)
