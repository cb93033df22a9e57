"""The protocol's workloads: frozen, and of the kind that they claim to be."""

from hashlib import sha256

import pytest

from parlay.bench.protocol import load_prefixes
from parlay.bench.workloads import WORKLOADS, edit, workload
from parlay.engine.tokenizer import TextCodec
from parlay.models.select import find_model

FROZEN = {"completion": "fc69360c6d6698fe", "edit": "b2b671d80274de32", "agent": "0d5452bf7d333238"}


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(find_model("tiny-code"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_frozen(name: str) -> None:
    made = workload(name)
    assert len(made) == 512
    assert [prompt.number for prompt in made] == list(range(512))
    assert max(len(prompt.tokens) for prompt in made) <= 160
    digest = sha256(repr([prompt.tokens for prompt in made]).encode()).hexdigest()
    assert digest[:16] == FROZEN[name]
    assert len(workload(name, 3)) == 3
    assert name == "agent" or workload(name, 3) == made[:3]


def test_an_edit_shows_the_code_and_begins_it_with_another_name(codec: TextCodec) -> None:
    prompts = workload("edit", 64)
    renamed = 0
    for prompt, prefix in zip(prompts, load_prefixes(64), strict=True):
        assert list(prompt.tokens) == edit(codec, prefix)
        shown, _, begun = codec.decode(prompt.tokens).partition("\n\n\n")
        assert codec.decode(prefix.tokens).startswith(shown) or "\n\n\n" in codec.decode(prefix.tokens)
        renamed += "_2" in begun
    assert renamed > 16


def test_an_agent_asks_the_same_again(codec: TextCodec) -> None:
    first, later = workload("agent")[5], workload("agent")[5 + 3 * 32]
    assert codec.decode(first.tokens).startswith("# Attempt 1\n")
    assert codec.decode(later.tokens).startswith("# Attempt 4\n")
    assert first.tokens[-128:] == later.tokens[-128:] == load_prefixes()[5].tokens


def test_a_quick_look_at_an_agent_has_fewer_tasks_but_asks_as_often(codec: TextCodec) -> None:
    quick = workload("agent", 32)
    assert [prompt.number for prompt in quick] == list(range(32))
    assert [prompt.tokens[-128:] for prompt in quick] == [p.tokens for p in load_prefixes(2)] * 16
    assert codec.decode(quick[-1].tokens).startswith("# Attempt 16\n")
