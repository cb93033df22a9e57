"""The protocol's workloads: frozen, and of the kind that they claim to be."""

import gzip
import json
from hashlib import sha256
from pathlib import Path

import pytest
from checkpoints import write_byte_tokenizer

from parlay.bench.tally import repeated_share
from parlay.bench.workloads import EMBEDDED_ONLY, WORKLOADS, Workload, edit, load_prefixes, workload
from parlay.checkpoints.find import ASSETS, find_model
from parlay.errors import ConfigError
from parlay.text.tokenizer import TextCodec

FROZEN = {
    "completion": "fc69360c6d6698fe",
    "edit": "b2b671d80274de32",
    "agent": "0d5452bf7d333238",
    "random": "a1d4f5fc915a2ca3",
}


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(find_model("tiny-code"))


def test_prefixes_are_frozen(codec: TextCodec) -> None:
    prefixes = load_prefixes()
    assert len(prefixes) == 512
    assert {len(p.tokens) for p in prefixes} == {128}
    assert len({p.tokens for p in prefixes}) == 512
    with gzip.open(ASSETS / "evaluation" / "prefixes.jsonl.gz") as file:
        for line, prefix in zip(file, prefixes, strict=True):
            assert codec.encode(json.loads(line)["text"]) == list(prefix.tokens)


def test_repeated_share() -> None:
    assert repeated_share([range(32)]) == 0
    assert repeated_share([[1] * 16]) == 8 / 9
    assert repeated_share([]) == 0


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


def test_random_prompts_repeat_nothing(codec: TextCodec) -> None:
    prompts = workload("random", 40)
    assert all(len(set(prompt.tokens)) == len(prompt.tokens) == 128 for prompt in prompts)
    special = set(codec.tokenizer.get_added_tokens_decoder())
    assert special
    assert not special.intersection(*[prompt.tokens for prompt in prompts])
    pairs = [pair for prompt in prompts for pair in zip(prompt.tokens, prompt.tokens[1:], strict=False)]
    assert len(set(pairs)) > 0.999 * len(pairs)


@pytest.fixture
def bytes_codec(tmp_path: Path) -> TextCodec:
    write_byte_tokenizer(tmp_path)
    return TextCodec(tmp_path)


def test_an_agent_in_another_models_tokens(bytes_codec: TextCodec, codec: TextCodec) -> None:
    own, embedded = workload("agent", 32, bytes_codec), workload("agent", 32)
    assert [prompt.number for prompt in own] == list(range(32))
    assert [bytes_codec.decode(p.tokens) for p in own] == [codec.decode(p.tokens) for p in embedded]
    assert max(own[0].tokens) < 256


def test_random_prompts_in_another_models_tokens(bytes_codec: TextCodec) -> None:
    prompts = workload("random", 3, bytes_codec)
    assert all(len(set(prompt.tokens)) == 128 and max(prompt.tokens) < 256 for prompt in prompts)
    assert prompts[0].tokens != prompts[1].tokens


@pytest.mark.parametrize("name", EMBEDDED_ONLY)
def test_another_vocabulary_cannot_have_it(name: str, bytes_codec: TextCodec) -> None:
    with pytest.raises(ConfigError, match=r"is in tiny-code's tokens, .* take agent or random, or give a file"):
        workload(name, 3, bytes_codec)


def test_seeds_are_new_in_every_pass() -> None:
    made = Workload("random", tuple(workload("random", 4)), max_tokens=7, ignore_eos=False)
    seeds = [made.params(prompt, 0.8, passes).seed for passes in range(3) for prompt in made.prompts]
    assert seeds == list(range(12))
    params = made.params(made.prompts[0], 0.8)
    assert (params.temperature, params.max_tokens, params.ignore_eos) == (0.8, 7, False)
    assert made.longest == 135
    assert made.digest != Workload("random", made.prompts, max_tokens=8, ignore_eos=False).digest
