"""A widened head guesses on the widened target what it guessed on the small one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB, write_llama
from eagles import eagle_config, random_eagle, random_eagle3, write
from fitting import fitted
from heads import mlp_config, random_medusa, random_mlp, write_head, write_medusa
from safetensors.torch import load_file
from widen import main
from widening.heads import WAYS, widen_all, widen_head
from widening.model import Shape, widen

from parlay import LLM, SamplingParams
from parlay.bench.contenders import contenders
from parlay.errors import ConfigError, ModelError
from parlay.proposers.select import proposers

# By a power of 4 in width, with more layers than the small one's 3 or 4.
SHAPE = Shape(hidden_size=256, num_layers=7, num_heads=16, num_kv_heads=4, intermediate_size=160)
FLAGS = [f"--{name.replace('_', '-')}={getattr(SHAPE, name)}" for name in Shape.__slots__]
PROMPTS = [[(7 * i * j + j) % 250 for i in range(1, 12)] for j in range(1, 6)]


def wide_of(target: Path, shape: Shape = SHAPE) -> Path:
    """Return the widened form of a target, made beside it when first asked for."""
    path = target.parent / f"wide-{shape.hidden_size}"
    if not path.is_dir():
        widen(str(target), path, shape, 0, lambda label: None)
    return path


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("random") / "small", num_hidden_layers=4)


def drafts(model: Path, head: Path, length: int, tokens: int) -> list[tuple[Any, ...]]:
    """Return of each prompt what was emitted, guessed wrongly, and confirmed."""
    llm = LLM(
        str(model),
        dtype="float32",
        max_model_len=128,
        speculative_config={"model": str(head), "lengths": "fixed", "num_speculative_tokens": length},
    )
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, return_rejected=True)
    found = [result.outputs[0] for result in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert all(output.rejected is not None for output in found)
    return [
        (o.token_ids, o.sources, [(g.at, g.token_id) for g in o.rejected or ()], o.metrics.accepted_per_position)
        for o in found
    ]


def same_drafts(
    target: Path, head: Path, length: int = 3, shape: Shape = SHAPE, tokens: int = 12
) -> tuple[Path, int]:
    """Widen a head, compare; return the wide one and how many guesses were right."""
    wide = wide_of(target, shape)
    path = head.parent / f"{head.name}-wide-{shape.hidden_size}"
    row = widen_head(head, str(target), wide, path)
    assert row["output"] == str(path)
    small, large = drafts(target, head, length, tokens), drafts(wide, path, length, tokens)
    assert large == small
    assert any(rejected or any(accepted) for _, _, rejected, accepted in small)
    return path, sum(sum(accepted) for *_, accepted in small)


IDS = [token for token in range(VOCAB) if token % 3]
TAPS = {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}


def eagle3_tensors(raw: dict[str, Any], *less: str, **how: Any) -> dict[str, torch.Tensor]:
    tensors = random_eagle3(raw, **how)
    for name in less:
        del tensors[name]
    return tensors


SCALED = mlp_config(scale_input=True, tie_weights=True)
DEEP = eagle_config(num_hidden_layers=2, attention_bias=True)
PLAIN, SOME = eagle_config(), eagle_config(**TAPS, draft_vocab_size=len(IDS))
NARROW = eagle_config(hidden_size=32, draft_vocab_size=len(IDS), target_hidden_size=64, **TAPS)


def medusa_of_vllm(path: Path) -> Path:
    tensors = random_medusa(layers=2, outputs=False)
    vllms = {f"blocks.{n.split('.')[0]}.layers.{n.split('.')[1]}.weight": t for n, t in tensors.items() if "we" in n}
    return write_head(path, {"model_type": "medusa", "hidden_size": 64, "vocab_size": VOCAB}, vllms)


def tied_mlp(path: Path) -> Path:
    tied = random_mlp(SCALED)
    tied["speculator.head.1.weight"] = tied["speculator.head.0.weight"]  # as some exporters do, in the same memory
    return write_head(path, SCALED, tied, "pytorch_model.bin")


def narrow_eagle3(path: Path) -> Path:
    own = eagle3_tensors(NARROW, ids=IDS)
    own["embed_tokens.weight"] = torch.randn((VOCAB, 32), generator=torch.Generator().manual_seed(5))
    return write(path, NARROW, own)


def eagle3_of_others(path: Path) -> Path:
    nested = {key: value for key, value in SOME.items() if key not in TAPS}
    taps = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 0, 1]}}
    return write(path, {**nested, **taps}, eagle3_tensors(SOME, ids=IDS))


# A head of every form.
HEADS: dict[str, Callable[[Path], Path]] = {
    "medusa, first generation": lambda path: write_medusa(path, random_medusa()),
    "medusa, second generation": lambda path: write_medusa(
        path, random_medusa(layers=2, outputs=False), "medusa_lm_head.safetensors"
    ),
    "medusa of vllm": medusa_of_vllm,
    "mlp": lambda path: write_head(path, mlp_config(), random_mlp(mlp_config())),
    "mlp as wide as the target": lambda path: write_head(
        path, mlp_config(inner_dim=0), random_mlp(mlp_config(inner_dim=0))
    ),
    "mlp, scaled and tied": tied_mlp,
    "eagle": lambda path: write(path, PLAIN, random_eagle(PLAIN)),
    "eagle, two layers and an embedding": lambda path: write(
        path, DEEP, random_eagle(DEEP, bias=False, embedding=True)
    ),
    "eagle3": lambda path: write(path, SOME, eagle3_tensors(SOME, ids=IDS)),
    "eagle3, narrow": narrow_eagle3,
    "eagle3 with the target's head": lambda path: write(
        path, eagle_config(**TAPS), eagle3_tensors(PLAIN, "lm_head.weight")
    ),
    "eagle3 of others": eagle3_of_others,
}


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("head") / "written") for name, make in HEADS.items()}


@pytest.mark.parametrize("case", HEADS)
def test_random_heads_guess_the_same(target: Path, heads: dict[str, Path], case: str) -> None:
    same_drafts(target, heads[case])


@pytest.mark.parametrize("method", WAYS)
def test_fitted_heads_are_accepted_as_often(models: dict[str, Any], method: str) -> None:
    small = models["float32"].target
    _, accepted = same_drafts(small, fitted(method, small), tokens=24)
    assert accepted > 10


@pytest.mark.parametrize("case", ["medusa, first generation", "mlp, scaled and tied", "eagle", "eagle3"])
def test_by_any_factor(target: Path, heads: dict[str, Path], case: str) -> None:
    shape = Shape(hidden_size=192, num_layers=4, num_heads=8, num_kv_heads=2, intermediate_size=96)
    same_drafts(target, heads[case], shape=shape)


def test_where_elements_lie_apart(tmp_path: Path) -> None:
    """Inputs beyond a linear layer's first block go to another one, with zeros between."""
    small = write_llama(tmp_path / "small", hidden_size=576)
    shape = Shape(hidden_size=1152, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=96)
    raw = eagle_config(hidden_size=576)
    same_drafts(small, write(tmp_path / "eagle", raw, random_eagle(raw)), shape=shape)
    raw = eagle_config(eagle_aux_hidden_state_layer_ids=[0, 1, 3], target_hidden_size=576, draft_vocab_size=len(IDS))
    tensors = random_eagle3(raw, states=3 * 576, ids=IDS)
    tensors["embed_tokens.weight"] = torch.randn((VOCAB, 64), generator=torch.Generator().manual_seed(5))
    same_drafts(small, write(tmp_path / "eagle3", raw, tensors), shape=shape)


def test_norms_keep_their_epsilon(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    """It is added to a mean over four times as many elements."""
    for case, eps in (("eagle", 1e-6 / 4), ("eagle3", 1e-6)):
        widen_head(heads[case], str(target), wide_of(target), tmp_path / case)
        assert json.loads((tmp_path / case / "config.json").read_text())["rms_norm_eps"] == eps


def test_usual_layers_stay_the_small_targets(tmp_path: Path) -> None:
    """Without a list, which layers an EAGLE-3 head reads follows from how many its target has."""
    small = write_llama(tmp_path / "small", num_hidden_layers=9, tie_word_embeddings=True)
    raw = eagle_config()
    head = write(tmp_path / "head", raw, eagle3_tensors(raw, "lm_head.weight"))
    shape = Shape(hidden_size=256, num_layers=12, num_heads=16, num_kv_heads=4, intermediate_size=96)
    wide, _ = same_drafts(small, head, shape=shape)
    config = json.loads((wide / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 6]
    assert config["hidden_size"] == 64
    tensors = load_file(wide / "model.safetensors")
    lent = load_file(small / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(tensors["embed_tokens.weight"], lent)
    assert torch.equal(tensors["lm_head.weight"], lent)


def test_what_is_the_heads_own_keeps_its_size(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    wide = wide_of(target)
    for case in ("mlp as wide as the target", "eagle3, narrow"):
        before = load_file(heads[case] / "model.safetensors")
        widen_head(heads[case], str(target), wide, tmp_path / case)
        after = load_file(tmp_path / case / "model.safetensors")
        (grown,) = (name for name in before if before[name].shape != after[name].shape)
        assert after[grown].shape[0] == before[grown].shape[0]
        assert after[grown].shape[1] == 4 * before[grown].shape[1]
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if name != grown)


# ------------------------------------------------------------------------------------------------- the commands


def command(*more: object) -> int:
    return main([*FLAGS, *map(str, more)])


def test_from_the_command_line(
    target: Path, heads: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "wide"
    assert command("--model", target, "--output", out, "--head", heads["eagle3"], "--head", heads["mlp"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["output"] for row in rows] == [str(out), f"{out}/heads/eagle3", f"{out}/heads/mlp_speculator"]
    assert "benchmark artefact" in (out / "heads" / "eagle3" / "README.md").read_text()
    files = {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.is_file()}
    # A target that is there is only added to.
    assert command("--model", target, "--output", out, "--head", heads["eagle"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert (row["output"], row["method"]) == (f"{out}/heads/eagle", "eagle")
    assert all(file.stat().st_mtime_ns == time for file, time in files.items())
    # Another shape, or another model, is not there.
    assert command("--model", target, "--output", out, "--head", heads["eagle"], "--num-layers", 8) == 2
    assert "is not an empty directory" in capsys.readouterr().err
    assert command("--model", target, "--output", out, "--head", heads["eagle"]) == 2
    assert f"{out}/heads/eagle is not an empty directory" in capsys.readouterr().err


def test_benchmarks_take_the_heads_of_the_target(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "wide"
    widen_all(str(target), out, SHAPE, 0, [str(heads["eagle3"])], lambda label: None)
    found = contenders(str(out), None)
    assert next(iter(found)) == "none"
    assert found["eagle3"].options == {"model": str(out / "heads" / "eagle3")}
    assert "ngram" in found
    assert LLM(str(out), speculative_config=found["eagle3"]).generate([PROMPTS[0]], use_tqdm=False)


def test_benchmarks_leave_out_what_does_not_fit(
    target: Path,
    heads: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in proposers.names():
        module = proposers.load(name)
        if "model" in getattr(module, "EMBEDDED", {}):  # of the embedded target, whose vocabulary is another
            monkeypatch.setattr(module, "EMBEDDED", None)
    monkeypatch.setattr(proposers.load("medusa"), "EMBEDDED", {"model": str(heads["medusa, first generation"])})
    assert "medusa" in contenders(str(target), None)
    assert not caplog.records
    wide = wide_of(target)
    assert "medusa" not in contenders(str(wide), None)
    assert not caplog.records  # with another vocabulary than the embedded one's nobody expects it to fit
    monkeypatch.setattr("parlay.bench.contenders.has_embedded_vocabulary", lambda codec: True)
    assert "medusa" not in contenders(str(wide), None)
    (said,) = (record.getMessage() for record in caplog.records)
    assert "medusa is skipped" in said
    assert "given with --draft medusa=PATH" in said


# ---------------------------------------------------------------------------------------------------- bad input


def test_heads_that_cannot_be_widened(target: Path, tmp_path: Path) -> None:
    wide, raw = wide_of(target), eagle_config()
    normed = random_eagle(raw) | {f"layers.0.self_attn.{x}_norm.weight": torch.ones(16) for x in "qk"}
    third = eagle_config(**TAPS, norm_before_fc=True)
    other = mlp_config(emb_dim=128)
    cases = {
        "have one epsilon; take a head without q_norm": write(tmp_path / "a", raw, normed),
        "take a head without norm_before_fc": write(
            tmp_path / "b", third, random_eagle3(third) | {"input_norm.weight": torch.ones(192)}
        ),
        "the head was made for another target": write_head(tmp_path / "c", other, random_mlp(other)),
        "a draft model goes with the widened target as it is": write_llama(tmp_path / "d"),
    }
    for message, head in cases.items():
        with pytest.raises(ModelError, match=message):
            widen_head(head, str(target), wide, tmp_path / "out")
        with pytest.raises(ModelError, match=message):
            widen_all(str(target), tmp_path / "wide", SHAPE, 0, [str(head)], lambda label: None)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "wide").exists()


def test_an_output_in_use(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not an empty directory"):
        widen_head(heads["mlp"], str(target), wide_of(target), tmp_path)


def test_two_heads_of_one_method(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    pair = [str(heads["eagle3"]), str(heads["eagle3, narrow"])]
    with pytest.raises(ConfigError, match="are both heads for the method eagle3; give one of each"):
        widen_all(str(target), tmp_path / "wide", SHAPE, 0, pair, lambda label: None)
    assert not (tmp_path / "wide").exists()


def test_a_target_that_is_none(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    """Another model of the widened form's shape; a smaller one; nothing at all."""
    stranger = write_llama(tmp_path / "stranger", seed=9, num_hidden_layers=4)
    widen(str(stranger), tmp_path / "wide", SHAPE, 0, lambda label: None)
    with pytest.raises(ConfigError, match="is no widened form of"):
        widen_head(heads["mlp"], str(target), tmp_path / "wide", tmp_path / "out")
    with pytest.raises(ConfigError, match="is no widened form of"):
        widen_head(heads["mlp"], str(tmp_path / "wide"), stranger, tmp_path / "out")
    with pytest.raises(ModelError, match="there is no model"):
        widen_head(heads["mlp"], str(target), tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()
