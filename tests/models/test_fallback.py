"""Models without a family file: what becomes of their classes, exactness, and what is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stored_layers
import torch
from checkpoints import EOS
from crossing import crossed
from families import FACTORS, SMALL, reference, rope, write_family
from pieces import LENGTH, assert_speculation_changes_no_token, logits_in_pieces, make_runner, random_tokens
from safetensors.torch import load_file, save_file
from torch import Tensor

from parlay import LLM, ModelError, SamplingParams
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_as, describe_model, load_model, stored_kinds
from parlay.models.transformers import modules as foreign_modules
from parlay.models.transformers.modules import KernelLinear, RotaryTable
from parlay.numerics import model_selfcheck
from parlay.numerics.identify import inspect
from parlay.runner.footprint import weight_bytes
from parlay.types.storage import Made


def test_known_modules_are_replaced(checkpoint: Callable[[str], Path]) -> None:
    """Of what computes, embeddings alone stay torch's, whatever a norm is called and however a weight is stored."""
    for name in ("gemma", "gpt2", "starcoder2", "gemma", "phi"):
        model: Any = load_model(describe_model(str(checkpoint(name))), torch.float32, LENGTH, select_kernels())
        leaves = [type(module) for module in model._base.modules() if not list(module.children())]
        left = {kind.__name__ for kind in leaves if not kind.__module__.startswith("parlay")}
        assert all("Embedding" in kind or kind == "Dropout" for kind in left), name


def test_speculation_changes_no_token(tmp_path: Path) -> None:
    """And exact by the self-check."""
    plain = assert_speculation_changes_no_token(tmp_path, "gemma", 24)
    assert plain.engine.numerics.exact
    assert plain.numerics_id.endswith("/exact")
    assert "+transformers-" in plain.numerics_id


def test_the_whole_model_is_checked_once(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = str(checkpoint("gptneox"))
    first = LLM(path, max_model_len=32).numerics_id
    numerics, findings = inspect(path)
    assert str(numerics) == first
    assert any("transformers" in str(case) for case in findings)
    assert not any(found.row_counts for found in findings.values())
    monkeypatch.setattr(model_selfcheck, "check_rows", None)
    assert LLM(path, max_model_len=32).numerics_id == first


def test_rows_that_depend_on_their_number_are_said_aloud(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forward = KernelLinear.forward

    def uneven(self: KernelLinear, x: Tensor) -> Tensor:
        return forward(self, x) * (1 + 1e-6 * (x.shape[1] > 3))

    monkeypatch.setattr(foreign_modules.KernelLinear, "forward", uneven)
    llm = LLM(str(checkpoint("gptneox")), max_model_len=32)
    assert not llm.engine.numerics.exact
    assert llm.numerics_id.endswith("/up-to-floating-point")
    assert "THE SAME-TOKENS GUARANTEE DOES NOT HOLD TO THE BIT HERE" in caplog.text
    assert "among 4 rows" in caplog.text
    _, findings = inspect(str(checkpoint("gptneox")))
    (bad,) = (found for found in findings.values() if found.row_counts)
    assert bad.row_counts[:3] == (4, 5, 6)
    assert llm.generate("it serves all the same", SamplingParams(max_tokens=4), use_tqdm=False)


def test_what_looks_at_other_rows_is_refused(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaMLP

    forward = GemmaMLP.forward
    monkeypatch.setattr(GemmaMLP, "forward", lambda self, x: forward(self, x + x.roll(1, dims=1)))
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ModelError, match=r"in pieces, so something besides attention"):
            make_runner(checkpoint("gemma"), dtype)


def test_what_looks_into_modules_is_refused(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaMLP

    monkeypatch.setattr(GemmaMLP, "forward", lambda self, x: x @ self.up_proj.weight.T @ self.up_proj.weight)
    with pytest.raises(ModelError, match="its class does not run with parlay's modules"):
        make_runner(checkpoint("gemma"))


def test_what_computes_something_else_is_refused(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = KernelLinear.forward
    monkeypatch.setattr(foreign_modules.KernelLinear, "forward", lambda self, x: 1.1 * forward(self, x))
    with pytest.raises(ModelError, match="Starcoder2ForCausalLM is not supported: its logits differ"):
        make_runner(checkpoint("starcoder2"))


def damaged(path: Path, to: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    (to / "config.json").write_text((path / "config.json").read_text())
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), f"lacks the tensor '{NAME}'"),
        (lambda t: t.update(more=torch.zeros(3)), "its config does not explain: 'more'"),
        (lambda t: t.update({NAME: torch.zeros(3, 64)}), "do not fit its config"),
        (lambda t: t[NAME].fill_(float("nan")), f"tensor '{NAME}' holds values that are infinite or not numbers"),
    ],
)
def test_weights_that_do_not_fit(
    checkpoint: Callable[[str], Path], tmp_path: Path, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    path = damaged(checkpoint("gemma"), tmp_path, change)
    with pytest.raises(ModelError, match=message):
        make_runner(path)


def test_pickled_weights_and_memory(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = checkpoint("phi")
    config = describe_model(str(path))
    tensors = load_file(path / "model.safetensors")
    assert weight_bytes(config, torch.bfloat16) == 2 * sum(t.numel() for t in tensors.values())
    assert {product.shape for product in config.products()} == {(64, 64), (32, 64), (96, 64), (64, 96)}
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    tokens = random_tokens()
    expected = logits_in_pieces(make_runner(path), tokens, [])
    assert torch.equal(logits_in_pieces(make_runner(tmp_path), tokens, []), expected)


def write_config(path: Path, prefix: str, suffix: str, changes: dict[str, Any]) -> str:
    import transformers

    config = getattr(transformers, f"{prefix}Config")(**changes)
    config.architectures = [prefix + suffix]
    config.save_pretrained(path)
    return str(path)


REFUSALS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("Mamba", "ForCausalLM", {}, "it is recurrent"),
    ("Rwkv", "ForCausalLM", {}, "it is recurrent"),
    ("RecurrentGemma", "ForCausalLM", {}, "it is recurrent"),
    ("Jamba", "ForCausalLM", {}, "it is recurrent"),
    ("MiniMax", "ForCausalLM", {"num_hidden_layers": 2}, "it has layers of the kind 'linear_attention'"),
    ("T5", "ForConditionalGeneration", {}, "it is an encoder and a decoder"),
    ("Bert", "ForMaskedLM", {}, "it is no decoder-only model"),
    ("Bert", "LMHeadModel", {}, "not causal|neither causal"),
    ("Bloom", "ForCausalLM", {}, "attention does not go through transformers' attention interface"),
    ("Mpt", "ForCausalLM", {}, "attention does not go through transformers' attention interface"),
    ("Flint", "ForCausalLM", {"num_hidden_layers": 2}, "it asks attention for sinks"),
    (
        "MiniCPM3",
        "ForCausalLM",
        {"num_hidden_layers": 2, "v_head_dim": 32},
        "values have another width than its keys|columns",
    ),
    ("StableLm", "ForCausalLM", {"num_hidden_layers": 2}, "do not pass keyword arguments on to attention"),
    ("Gemma", "ForCausalLM", {"num_hidden_layers": 2, "head_dim": 10}, "10 columns"),
    ("DiffLlama", "ForCausalLM", {"num_hidden_layers": 2}, "several times in a layer"),
)


@pytest.mark.parametrize(("prefix", "suffix", "changes", "message"), REFUSALS, ids=str)
def test_refusals_say_why(tmp_path: Path, prefix: str, suffix: str, changes: dict[str, Any], message: str) -> None:
    path = write_config(tmp_path, prefix, suffix, changes)
    with pytest.raises(ModelError, match=f"{prefix}{suffix} is not supported: .*({message})") as caught:
        describe_model(path)
    assert "\n" not in str(caught.value)


def test_convolutions_are_refused(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaMLP

    path, made = checkpoint("gemma"), GemmaMLP.__init__  # others get the same, so it is made before

    def with_convolution(self: Any, config: Any) -> None:
        made(self, config)
        self.mix = torch.nn.Conv1d(8, 8, 3)

    monkeypatch.setattr(GemmaMLP, "__init__", with_convolution)
    with pytest.raises(ModelError, match="it is convolutional"):
        describe_model(str(path))


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    config = {
        **SMALL,
        "model_type": "evil",
        "architectures": ["EvilForCausalLM"],
        "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilForCausalLM"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="EvilForCausalLM is not supported: transformers cannot read its config"):
        describe_model(str(tmp_path))


def test_without_transformers(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(checkpoint("gemma"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install 'parlay\[transformers\]'"):
        describe_model(path)


def test_the_end_of_a_text_is_known(checkpoint: Callable[[str], Path]) -> None:
    assert describe_model(str(checkpoint("gpt2"))).eos_token_ids == (EOS,)


def test_what_bfloat16_hides_is_not_called_exact(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = str(checkpoint("flexolmo"))
    llm = LLM(path, max_model_len=32, dtype="bfloat16")
    assert llm.numerics_id.endswith("/up-to-floating-point")
    assert "bfloat16 hides what torch's " in caplog.text
    monkeypatch.setattr("parlay.numerics.identify.ROW_COUNTS", (2, 5))  # torch's experts are slow
    numerics, findings = inspect(path, "bfloat16")
    assert numerics == llm.engine.numerics
    assert any(found.row_counts for found in findings.values())


def test_the_survey_names_what_torch_computes(checkpoint: Callable[[str], Path]) -> None:
    rest = {
        name: make_runner(checkpoint(name)).model.rest
        for name in ("gemma", "gpt2", "cohere", "vaultgemma", "flexolmo")
    }
    assert rest["gemma"] == rest["gpt2"] == rest["cohere"] == ()
    assert rest["vaultgemma"] == ("tanh",)
    assert {"mm", "topk"} <= set(rest["flexolmo"])
    twins = make_runner(checkpoint("gemma"), kernels="reference")
    assert twins.model.rest == (), "what kernels do is theirs"


@pytest.mark.parametrize("kind", ["default", "dynamic", "longrope"])
def test_rotary_tables(kind: str) -> None:
    """As one call that reaches the last position would have it, whatever is asked for and however long the table."""
    import transformers
    from transformers.models.gemma.modeling_gemma import GemmaRotaryEmbedding

    numbers = {"longrope": {"original_max_position_embeddings": 32, **FACTORS}}.get(kind, {})
    shape = SMALL | {"max_position_embeddings": 64} | rope(kind, factor=4.0, **numbers)
    config = transformers.GemmaConfig(**shape)
    x, everything = torch.zeros(1, 1, 64), torch.arange(300)[None]
    expected = GemmaRotaryEmbedding(config)(x, everything)
    table = RotaryTable(GemmaRotaryEmbedding(config), 300)
    some = torch.tensor([[250, 3, 3, 127, 0]])
    for found, whole_table, right in zip(table(x, some), table(x, everything), expected, strict=True):
        torch.testing.assert_close(whole_table, right, atol=1e-6, rtol=0)
        assert torch.equal(found, whole_table[:, some[0]])
    if kind == "default":
        shorter = RotaryTable(GemmaRotaryEmbedding(config), 131)
        for part, right in zip(shorter(x, everything[:, :131]), table(x, everything), strict=True):
            assert torch.equal(part, right[:, :131])


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("awq", {"Q4_1"}),
        pytest.param("gptq", {"Q4_1"}, marks=pytest.mark.soak),
        ("fp8 in blocks", set()),
        ("w4a16", {"Q4_1"}),
        pytest.param("nf4", set(), marks=pytest.mark.soak),
    ],
)
def test_quantised_layers_are_read_as_they_are_stored(tmp_path: Path, case: str, kinds: set[str]) -> None:
    """Against the class with the numbers that loops make of them; what is no block is dequantised."""
    numbers = stored_layers.write(tmp_path / "stored", case, family="gemma")
    plain = write_family(tmp_path / "plain", "gemma", **stored_layers.WIDE)
    tensors = load_file(plain / "model.safetensors")
    save_file(
        {**tensors, **{name: own.float() for name, own in numbers.items()}},
        plain / "model.safetensors",
        {"format": "pt"},
    )
    tokens = random_tokens()
    expected = reference(plain, tokens)
    found = logits_in_pieces(make_runner(tmp_path / "stored", storage="plain"), tokens, [])
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
    assert set(map(str, stored_kinds(describe_model(str(tmp_path / "stored"))).values())) == kinds
    runner = make_runner(tmp_path / "stored")
    blocks = logits_in_pieces(runner, tokens, [])
    assert (blocks - expected).std() < 0.15 * expected.std()
    assert torch.equal(logits_in_pieces(runner, tokens, [1, 30, 47]), blocks)


@crossed(name=["gemma", "starcoder2", "gptneox"], storage=["int8", "int4"])
def test_fewer_bits_are_made_of_plain_numbers(
    checkpoint: Callable[[str], Path], name: str, storage: Made, tmp_path: Path
) -> None:
    path, tokens = checkpoint(name), random_tokens()
    config = describe_as(path, storage, storage)
    assert {str(kind) for kind in stored_kinds(config).values()} == {"int8": {"Q8_0"}, "int4": {"Q8_0", "Q4_1"}}[
        storage
    ]
    runner = make_runner(path, storage=storage)
    found = logits_in_pieces(runner, tokens, [])
    expected = reference(path, tokens)
    assert not torch.equal(found, logits_in_pieces(make_runner(path), tokens, []))
    assert (found - expected).std() < {"int8": 0.05, "int4": 0.4}[storage] * expected.std()
    assert torch.equal(logits_in_pieces(runner, tokens, [1, 30, 47]), found)
