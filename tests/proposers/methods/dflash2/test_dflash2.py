"""DFlash2 heads: what is more in them than in DFlash's, against the `speculators` library and a twin."""

from pathlib import Path
from typing import Any

import pytest
import torch
from asking import run
from blocks import WalkTwin, block_config, random_block, twin_for, walk_tensors, write_head
from eagles import Tensors, assert_drafts
from heads import serve_head
from safetensors.torch import load_file
from watching import Watch, asks

from parlay import ModelError
from parlay.kernels.select import select_kernels
from parlay.proposers.methods.dflash2.convolution import Convolution
from parlay.weights.weight import Weight

GOLDEN = Path(__file__).parents[3] / "goldens" / "dflash2" / "golden.safetensors"
OWN = {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 5}


def walk(taps: int = 3, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """Return a head as its authors write it."""
    config = block_config(architectures=["DFlash2DraftModel"], block_size=6)
    config["dflash_config"] |= OWN | {"conv_kernel_size": taps} | changes
    return config, {**random_block(config), **walk_tensors(64, 257, taps=taps)}


def speculators() -> tuple[dict[str, Any], Tensors]:
    """Return a head as the library writes it."""
    given, tensors = walk()
    layers = {key: value for key, value in given.items() if key not in ("dflash_config", "block_size")}
    layers |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    config = {
        "speculators_model_type": "dflash2",
        "architectures": ["DFlash2DraftModel"],
        "transformer_layer_config": layers,
        "aux_hidden_state_layer_ids": [1, 2, 3],
        "mask_token_id": 7,
        "block_size": 6,
        "sliding_window_non_causal": True,
        **OWN,
    }
    return config, tensors


HEADS = {"authors": walk, "one tap": lambda: walk(1), "more taps than rows": lambda: walk(7), "library": speculators}


def test_convolutions_and_the_selector_are_those_of_the_library(tmp_path: Path, target: Path) -> None:
    golden = load_file(GOLDEN)
    base, projection = golden["conv.base_kernel"], golden["conv.kernel_projection.weight"]
    subject = Convolution(select_kernels(), base, Weight.of(projection), 5)
    read, own = subject.before(golden["given.rows"])
    torch.testing.assert_close(read.double(), golden["found.read"], rtol=0, atol=1e-4)
    made = subject.after(golden["given.made"], own)
    torch.testing.assert_close(made.double(), golden["found.made"], rtol=0, atol=1e-4)
    twin = WalkTwin(write_head(tmp_path, *walk()), torch.zeros(21, 24), torch.zeros(21, 24))
    twin.raw["selector_top_k"] = 4
    twin.tensors |= {name: tensor.double() for name, tensor in golden.items() if name.startswith("candidate")}
    given = (golden[f"given.{name}"] for name in ("logits", "hidden", "before"))
    for i, (logits, hidden, before) in enumerate(zip(*given, strict=True)):
        scores = twin.walked(logits.double(), hidden.double(), int(before))
        places = golden["found.candidates"][i]
        assert set(places.tolist()) == set(scores.isfinite().nonzero().flatten().tolist())
        torch.testing.assert_close(scores[places], golden["found.scores"][i], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_right(tmp_path: Path, target: Path, name: str) -> None:
    path = write_head(tmp_path, *HEADS[name]())
    llm, watch = serve_head(target, path), Watch()
    run(llm, asks(max_tokens=10), watch)
    assert_drafts(llm, twin_for(llm, path, WalkTwin), watch.drafts)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"conv_group_size": 7}, "conv_group_size=7 does not divide the width 64"),
        ({"selector_top_k": None}, "lacks the key 'selector_top_k'"),
        ({"selector_rank": 5}, r"tensor 'candidate_selector\.\w+(\.weight)?' has shape"),
    ],
)
def test_what_is_refused(tmp_path: Path, target: Path, changes: dict[str, Any], told: str) -> None:
    config, tensors = walk()
    config["dflash_config"] |= changes
    with pytest.raises(ModelError, match=told):
        serve_head(target, write_head(tmp_path, config, tensors))
