"""For a long time: random requests of every family and every kind of head, beside what each gets alone."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asking import random_seed
from assistants import PAIRS, write_assistant
from families import write_family
from families_in_turn import ONE_EACH
from mtp_layers import write_mtp
from random_requests import compare_random_requests
from recurrent import FAMILIES, write_random_head
from switching import any_choices

from parlay import LLM

AUTO: dict[str, Any] = {"method": "auto", "prompt_lookup_min": 1}
MANY_BLOCKS = {"block_size": 4, "num_blocks": 160, "max_num_seqs": 12}
FEW_BLOCKS = {"block_size": 8, "num_blocks": 80}


class Row(NamedTuple):
    """What is asked: `target` writes it, `config` says how it speculates and writes what that needs to a folder."""

    target: Callable[[Path], Path]
    config: Callable[[Path, Path], dict[str, Any]]
    options: dict[str, Any] = FEW_BLOCKS
    count: int = 10_000


def family(name: str, **more: Any) -> Callable[[Path], Path]:
    return lambda path: write_family(path, name, seed=2, calm=0.3, **more)


def layers(name: str, count: int, **more: Any) -> Callable[[Path], Path]:
    return lambda path: write_mtp(path, name, layers=count, calm=0.3, **more)


def drafter(name: str, target: Path, folder: Path) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(family(name, scale=4.0)(folder / "draft"))}


def head(method: str, target: Path, folder: Path) -> dict[str, Any]:
    return {"method": method, "model": str(write_random_head(folder / "head", method))}


def assistant(changes: dict[str, Any], target: Path, folder: Path) -> dict[str, Any]:
    return {"model": str(write_assistant(folder / "assistant", target, **changes))}


SIZES = {"vocab_size": 260, "vocab_size_per_layer_input": 260}
ROWS = {
    **{name: Row(family(name), lambda *_: AUTO, MANY_BLOCKS, 2_000) for name in ONE_EACH},
    **{name: Row(family(name), lambda *_: AUTO, MANY_BLOCKS) for name in FAMILIES},
    "recurrent-self": Row(family("qwen3_5", scale=4.0), lambda *_: {"method": "self"}),
    **{
        f"recurrent-draft-{name}": Row(family("qwen3_5", scale=4.0), partial(drafter, name))
        for name in ("lfm2", "qwen3_5")
    },
    **{
        f"recurrent-{method}": Row(layers("qwen3_5", 1, seed=2), partial(head, method))
        for method in ("eagle", "eagle3", "dflash")
    },
    "recurrent-mtp": Row(layers("qwen3_5", 1, seed=2), lambda *_: {"method": "mtp"}),
    **{f"three-layers-{name}": Row(layers(name, 3), lambda *_: {"method": "mtp"}) for name in ("glm4moe", "qwen3_5")},
    **{
        f"assistant-{name}": Row(family(target, **SIZES), partial(assistant, changes))
        for name, (target, changes) in PAIRS.items()
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("name", ROWS)
def test_random_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of any length and temperature, that come, are preempted and aborted at any time, with drafts of any length."""
    row = ROWS[name]
    any_choices(monkeypatch)
    target = row.target(tmp_path / "target")
    common: dict[str, Any] = {"model": str(target), "dtype": "float32", "max_model_len": 96}
    alone = LLM(**common, enable_prefix_caching=False, speculative_config=None)
    spec = row.config(target, tmp_path)
    llm = LLM(**common, **row.options, max_num_batched_tokens=64, speculative_config=spec)
    compare_random_requests(alone, llm, random.Random(random_seed()), row.count)
