"""A widened model is the small one: the same bits where the shape allows it, the same function everywhere."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import read_config, write_llama
from mtp_layers import write_mtp
from safetensors import safe_open
from torch import Tensor
from widen import main
from widening.model import Shape, _shards, obstacles, widen

from parlay import LLM, CompletionOutput
from parlay.bench.workloads import Workload, load_prefixes
from parlay.errors import ConfigError, ModelError
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner

try:
    from parlay.kernels import _native  # noqa: F401

    NATIVE = True
except ImportError:
    NATIVE = False

# Group sizes, blocks of inputs and the number of layers all change.
SHAPE = Shape(hidden_size=1024, num_layers=10, num_heads=16, num_kv_heads=4, intermediate_size=1152)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "model"
    row = widen("tiny-code", path, SHAPE, 1, lambda label: None)
    assert row["same_bits"]
    return path


def logits_of(model: str | Path, tokens: list[int], dtype: torch.dtype) -> Tensor:
    """Return the logits of all tokens, run in two pieces."""
    kernels = select_kernels()
    runner = ModelRunner(load_model(describe_model(str(model)), dtype, 256, kernels), kernels, 16, 16)
    blocks, middle, parts = tuple(range(16)), len(tokens) // 3, []
    for start, end in ((0, middle), (middle, len(tokens))):
        hidden = runner.forward(flatten([Segment(tokens[start:end], start, blocks)], 16))
        parts.append(runner.logits(hidden, range(end - start)))
    return torch.cat(parts)


def complete(model: str | Path, **options: Any) -> list[CompletionOutput]:
    options.setdefault("speculative_config", None)
    llm = LLM(str(model), max_model_len=256, max_num_seqs=8, **options)
    asked = [
        (p, Workload("completion", (), max_tokens=16).params(p, temperature))
        for p, temperature in zip(load_prefixes(4), (0.0, 0.8) * 2, strict=True)
    ]
    results = llm.generate([p.tokens for p, _ in asked], [params for _, params in asked], use_tqdm=False)
    return [result.outputs[0] for result in results]


@pytest.mark.skipif(not NATIVE, reason="the twins sum in another order")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_same_bits(wide: Path, dtype: torch.dtype) -> None:
    [prefix] = load_prefixes(1)
    tokens = list(prefix.tokens[:60])
    assert torch.equal(logits_of(wide, tokens, dtype), logits_of("tiny-code", tokens, dtype))


@pytest.mark.skipif(not NATIVE, reason="the twins sum in another order")
def test_the_same_tokens_and_acceptance(wide: Path) -> None:
    expected = complete("tiny-code")
    draft = {"method": "draft_model", "lengths": "fixed", "model": "tiny-code-draft"}
    small, large = (complete(model, speculative_config=draft) for model in ("tiny-code", wide))
    assert [c.token_ids for c in large] == [c.token_ids for c in expected]
    accepted = [c.metrics.accepted_per_position for c in small]
    assert [c.metrics.accepted_per_position for c in large] == accepted
    assert any(map(sum, accepted))


@pytest.mark.skipif(not NATIVE, reason="the twins sum in another order")
def test_inner_units_of_a_recurrent_model(tmp_path: Path) -> None:
    """Layers of other kinds stay as they are, and so does what the one that predicts further tokens drafts."""
    small = write_mtp(tmp_path / "small", "qwen3_5", vocab_size=4096, intermediate_size=640)
    own = {field.name: getattr(describe_model(str(small)), field.name) for field in dataclasses.fields(Shape)}
    with pytest.raises(ModelError, match=r"linear_attn.* cannot grow; let the intermediate size alone be another"):
        widen(str(small), tmp_path / "wide", Shape(**own | {"hidden_size": 256}), 0, lambda label: None)
    assert widen(str(small), tmp_path / "wide", Shape(**own | {"intermediate_size": 2048}), 0, lambda label: None)[
        "same_bits"
    ]
    few, many = (
        complete(model, speculative_config={"method": "mtp", "lengths": "fixed", "num_speculative_tokens": 2})
        for model in (small, tmp_path / "wide")
    )
    assert [c.token_ids for c in many] == [c.token_ids for c in few]
    assert [c.metrics.accepted_per_position for c in many] == [c.metrics.accepted_per_position for c in few]


def test_weights_have_to_be_read(wide: Path) -> None:
    """Random numbers fill what zeros switch off; only what must add nothing is zero."""
    with safe_open(wide / "model-00001-of-00001.safetensors", framework="pt") as file:
        old, extra = (f"model.layers.{i}." for i in (0, 9))
        for name in ("q_proj", "k_proj", "v_proj"):
            for layer in (old, extra):
                assert (file.get_tensor(f"{layer}self_attn.{name}.weight") != 0).float().mean() > 0.99
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            assert (file.get_tensor(f"{old}{name}.weight") != 0).float().mean() > 0.99
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            assert not file.get_tensor(f"{extra}{name}.weight").any()
        assert not file.get_tensor("model.embed_tokens.weight")[:, 256:].any()


def test_seeds(tmp_path: Path) -> None:
    small = str(write_llama(tmp_path / "small"))
    shape = Shape(hidden_size=256, num_layers=3, num_heads=8, num_kv_heads=2, intermediate_size=96)
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        widen(small, tmp_path / name, shape, seed, lambda label: None)
        files.append((tmp_path / name / "model-00001-of-00001.safetensors").read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("hidden_size", [256, 192], ids=["power_of_4", "not"])
def test_transformers_agrees(tmp_path: Path, tied: bool, hidden_size: int) -> None:
    from transformers import LlamaForCausalLM

    small = write_llama(tmp_path / "small", tie_word_embeddings=tied)
    shape = Shape(hidden_size=hidden_size, num_layers=4, num_heads=16, num_kv_heads=4, intermediate_size=160)
    row = widen(str(small), tmp_path / "wide", shape, 0, lambda label: None)
    assert row["same_bits"] == (hidden_size == 256)
    tokens = list(range(40))
    logits = []
    for path in (small, tmp_path / "wide"):
        model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            logits.append(model(torch.tensor([tokens])).logits[0])
        torch.testing.assert_close(logits_of(path, tokens, torch.float32), logits[0], atol=1e-4, rtol=0)
    assert model.num_parameters() == row["parameters"]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=0)
    assert logits[0].std() > 0.5


def test_the_default_shape() -> None:
    small = describe_model("tiny-code")
    wide = dataclasses.replace(small, **dataclasses.asdict(Shape()))
    assert obstacles(small, wide) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 512}, "power of 4"),
        ({"hidden_size": 320}, "power of 4"),
        ({"intermediate_size": 1100}, "intermediate_size"),
        ({"num_heads": 128, "num_kv_heads": 8}, "num_heads"),
    ],
)
def test_obstacles_are_named(change: dict[str, int], message: str) -> None:
    small = describe_model("tiny-code")
    (found,) = obstacles(small, dataclasses.replace(small, **dataclasses.asdict(Shape()) | change))
    assert message in found


def test_shards_stay_below_the_limit() -> None:
    shapes = {"a": (100, 1_000_000), "b": (150, 1_000_000), "c": (1,), "huge": (300, 1_000_000), "d": (1,)}
    assert list(_shards(shapes, 2)) == [["a", "b"], ["c"], ["huge"], ["d"]]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, out = write_llama(tmp_path / "small"), tmp_path / "wide"
    sizes = ["--hidden-size", "128", "--num-layers", "3", "--num-heads", "4", "--num-kv-heads", "2"]
    command = ["--model", str(small), "--output", str(out), "--intermediate-size", "96", *sizes]
    assert main(command) == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out.splitlines()[-1])["rows"]
    assert (row["output"], row["same_bits"]) == (str(out), False)
    assert "power of 4" in printed.err
    config = read_config(out)
    assert (config.hidden_size, config.num_heads, config.head_dim) == (128, 4, 16)
    assert (out / "tokenizer.json").read_bytes() == (small / "tokenizer.json").read_bytes()
    assert "benchmark artefact" in (out / "README.md").read_text()
    assert main(command) == 2
    assert "is not an empty directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"hidden_size": 128}, "hidden_size=128 is below the model's own 256"),
        ({"num_layers": 7}, "num_layers=7 is below"),
        ({"intermediate_size": 639}, "intermediate_size=639 is below"),
        ({"num_heads": 30}, "does not divide into 8 groups"),
        ({"num_heads": 24}, "hidden_size=4096 is no multiple of num_heads=24"),
        ({"num_heads": 8}, "1 heads a group cannot hold the model's 2; raise num_heads to 16"),
    ],
)
def test_bad_shapes(tmp_path: Path, shape: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        widen("tiny-code", tmp_path / "wide", Shape(**shape), 0, lambda label: None)
    assert not (tmp_path / "wide").exists()


def test_an_output_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made: Not a directory"):
        widen("tiny-code", tmp_path / "file" / "wide", Shape(), 0, lambda label: None)


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model"):
        widen("tiny-cod", tmp_path / "wide", Shape(), 0, lambda label: None)
