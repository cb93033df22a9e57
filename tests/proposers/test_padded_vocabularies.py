"""Draft models and heads whose vocabulary is padded otherwise than the target's."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from asking import Ask, assert_same, run
from checkpoints import VOCAB, write_byte_tokenizer, write_llama
from conftest import MakeLLM, Pair, Plain, proposer_options
from families import write_family
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from parlay import SamplingParams
from parlay.kernels.select import select_kernels
from parlay.models.heads import differs_by_padding
from parlay.models.select import describe_model, load_model
from parlay.proposers.vocabulary import difference, fitted
from parlay.weights.weight import Weight

METHODS = ["draft_model", "eagle", "eagle3", "medusa", "mlp_speculator"]
PARAMS = [SamplingParams(temperature=t, seed=7, max_tokens=24, ignore_eos=True) for t in (0.0, 0.8)]
# The target's last tokens are in the prompt, which a shorter vocabulary lacks.
ASKS = [Ask((VOCAB - 1, 40, VOCAB - 2, *range(60, 70)), own) for own in PARAMS]


def repadded(source: Path, target: Path, rows: int) -> Path:
    """Copy a checkpoint with so many rows for tokens; further ones are likelier than all others."""
    shutil.copytree(source, target)
    (file,) = (*target.glob("*.safetensors"), *target.glob("*.pt"))
    tensors = torch.load(file) if file.suffix == ".pt" else load_file(file)
    for name, tensor in tensors.items():
        if len(tensor) == VOCAB:
            more = torch.cat([tensor, 50 * tensor[: max(rows - VOCAB, 0)]])
            tensors[name] = more[:rows].clone()
    (torch.save if file.suffix == ".pt" else save_file)(tensors, file)
    config = json.loads((target / "config.json").read_text())
    config |= {"vocab_size": rows} if "vocab_size" in config else {}
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("rows", [VOCAB + 64, VOCAB - 64], ids=["longer", "shorter"])
@pytest.mark.parametrize("method", METHODS)
def test_padding_is_never_drafted(
    make_llm: MakeLLM, plain: Plain, models: dict[str, Pair], tmp_path: Path, method: str, rows: int
) -> None:
    own = Path(proposer_options(method, models["float32"])["model"])
    other = repadded(own, tmp_path / "other", rows)
    common = {"method": method, "num_speculative_tokens": 3}
    alike, padded = (run(make_llm(speculative_config={**common, "model": str(path)}), ASKS) for path in (own, other))
    assert_same(plain("float32", ASKS), padded)
    if rows > VOCAB:
        assert [c.metrics.per_step for c in padded] == [c.metrics.per_step for c in alike]
    else:
        assert sum(c.metrics.accepted for c in padded) > 0


@pytest.mark.parametrize("family", ["qwen3", "llama-biases", "opt", "gemma"])
def test_every_decoder_can_leave_out_its_last_rows(tmp_path: Path, family: str) -> None:
    whole = write_family(tmp_path / "whole", family)
    config = describe_model(str(repadded(whole, tmp_path / "longer", VOCAB + 64)))
    kernels, hidden = select_kernels(), torch.randn(3, config.hidden_size)
    configs = describe_model(str(whole)), replace(config, most_tokens=VOCAB)
    one, other = (load_model(each, torch.float32, 64, kernels).logits(hidden) for each in configs)
    assert torch.equal(one, other)


@pytest.mark.parametrize("rows", [VOCAB + 64, VOCAB - 64], ids=["longer", "shorter"])
@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_drawn_drafts_are_verified_over_the_tokens_of_both(
    make_llm: MakeLLM, models: dict[str, Pair], tmp_path: Path, rows: int, verification: str
) -> None:
    other = repadded(models["float32"].draft, tmp_path / "other", rows)
    llm = make_llm(
        speculative_config={"model": str(other), "verification": verification, "num_speculative_tokens": 3}
    )
    answers = run(llm, ASKS)
    assert all(len(answer.token_ids) == 24 for answer in answers)
    assert sum(answer.metrics.accepted for answer in answers) > 0


def test_trees_and_processors_too(make_llm: MakeLLM, plain: Plain, models: dict[str, Pair], tmp_path: Path) -> None:
    asks = [
        *ASKS,
        Ask(ASKS[0].prompt, SamplingParams(temperature=0.8, seed=3, max_tokens=16, repetition_penalty=1.3)),
    ]
    for rows in (VOCAB + 64, VOCAB - 64):
        other = repadded(models["float32"].draft, tmp_path / str(rows), rows)
        config = {"model": str(other), "tree": {"width": 2, "depth": 3}, "num_speculative_tokens": 6}
        assert_same(plain("float32", asks), run(make_llm(speculative_config=config), asks))


@pytest.mark.parametrize(
    ("size", "target", "same"),
    [
        (151936, 152064, True),  # Qwen2.5 0.5B to 3B, and 7B to 72B
        (152064, 151936, True),
        (50304, 50688, True),  # Pythia 70M and 12B
        (262144, 262208, True),  # Gemma 3 1B and 4B
        (128256, 128320, True),  # Llama 3, and the same padded for eight ranks
        (32000, 32064, True),  # Llama 2, Phi-3
        (32000, 128256, False),  # Llama 2 and 3
        (151936, 256000, False),
        (49152, 50257, False),  # SmolLM2 and GPT-2
    ],
)
def test_which_sizes_may_be_padding(size: int, target: int, same: bool) -> None:
    assert differs_by_padding(size, target) is same


def renamed(path: Path, token: int, text: str) -> None:
    """Give another text to one of a tokenizer's ids."""
    file = path / "tokenizer.json"
    raw = json.loads(file.read_text())
    vocab = {own: i for own, i in raw["model"]["vocab"].items() if i != token}
    raw["model"]["vocab"] = {**vocab, text: token}
    file.write_text(json.dumps(raw))


def test_tokenizers_are_compared_where_both_have_a_token(tmp_path: Path) -> None:
    target, draft = (write_llama(tmp_path / name) for name in ("target", "draft"))
    longer = write_llama(tmp_path / "longer", vocab_size=VOCAB + 40)  # as a GGUF file that names its padding
    ours, theirs, more = (describe_model(str(path)) for path in (draft, target, longer))
    assert difference(ours, theirs) is None
    assert difference(more, theirs) is None
    assert difference(theirs, more) is None
    renamed(draft, 65, "other")
    assert "gives other ids to tokens" in (difference(ours, theirs) or "")


def test_added_tokens_may_have_other_names(tmp_path: Path) -> None:
    """As those of DeepSeek-R1-Distill-Qwen beside Qwen2.5's: they are never accepted, and all else is."""
    target, draft = (write_llama(tmp_path / name) for name in ("target", "draft"))
    for path, text in ((target, "<|endoftext|>"), (draft, "<|User|>")):
        write_byte_tokenizer(path, VOCAB - 1)
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(text, special=True)])
        tokenizer.save(str(path / "tokenizer.json"))
    assert difference(*(describe_model(str(path)) for path in (draft, target))) is None


def test_an_embedding_of_other_rows() -> None:
    weight = torch.arange(12.0).view(6, 2)
    assert fitted(Weight.of(weight), 4).numbers().equal(weight[:4])
    assert fitted(Weight.of(weight), 8).numbers().equal(torch.cat([weight, weight[4:]]))
