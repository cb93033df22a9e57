"""The numerics id: names everything that the bits of a token depend on besides its request."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version

import torch

from parlay import env
from parlay.config.verification import COUPLED, LOSSY
from parlay.kernels.base import Kernels
from parlay.kernels.reference_quantised import CHUNK
from parlay.kernels.select import select_kernels
from parlay.models.config import ModelConfig
from parlay.models.rotary import frequencies_of
from parlay.models.select import CausalModel, describe_model, load_model, resolve_dtype, stored_kinds, weight_shapes
from parlay.models.transformers import model as transformers_model
from parlay.numerics.digests import digest_model
from parlay.numerics.kernel_choice import RowInvariance, choose_kernels
from parlay.numerics.model_selfcheck import check_model_invariance, check_rows
from parlay.numerics.selfcheck import ROW_COUNTS, Case, Finding, check, product_case
from parlay.types.storage import MADE
from parlay.weights.quantise import INT8

_POSITIONS = (0.0, 1.0, 2.0, 3.0, 7.0, 30.0, 99.0, 511.0, 1023.0, 4095.0, 8191.0, 65535.0, 131071.0)
_ROPES, _BY_LENGTH = ("rope_parameters", "rope_scaling"), ("dynamic", "longrope", "su")  # of another library
_MAKERS = ("parlay", "tokenizers", "jinja2", "llguidance")  # of prompts' tokens, and of what may be emitted
_OUTPUTS = 96  # outputs of a quantised weight that are checked: three panels
_SHORT = 1024  # positions, which the self-check does not nearly use
_WHOLE = 1 << 22  # elements: all of a small model's weights, slices of a large one's


@dataclass(frozen=True, slots=True)
class Numerics:
    """Runs with equal ids give equal tokens, bit for bit; `str` gives the id.

    Attributes:
        model: the model's name with a digest of its files, tokenizer included; see `identify`.
        dtype: dtype of weights and activations; for quantised weights their kinds, and what activations become.
        kernels: name of the kernels, with the instruction set.
        torch: version of torch.
        bits: a digest of what the kernels made of the self-check's numbers, and of the versions of parlay and of the
            libraries that make tokens of prompts and say what grammars permit.
        exact: whether the self-check found rows independent of each other.
        verification: rule that verifies drafts; with any but the coupled one tokens depend on drafts too.
        summing: number of ranks whose sums are added; 1 where none are.
    """

    model: str
    dtype: str
    kernels: str
    torch: str
    bits: str
    exact: bool
    verification: str = COUPLED
    summing: int = 1

    def __str__(self) -> str:
        parts: tuple[str, ...] = (
            self.model,
            self.dtype,
            self.kernels,
            f"torch-{self.torch}",
            f"bits-{self.bits}",
            "exact" if self.exact else "up-to-floating-point",
        )
        if self.summing > 1:
            parts += (f"tp{self.summing}-fast",)
        if self.verification != COUPLED:
            parts += (f"{self.verification}{'-lossy' if self.verification in LOSSY else ''}",)
        return "/".join(parts)


def identify(config: ModelConfig, length: int, digest: str) -> str:
    """Return a model's name with a digest of all that its numbers are made of.

    That is its files and the frequencies of its positions, which some kinds of rotary embedding choose by the longest
    sequence, with their cosines and sines, which a library computes. A class of another library may do so too.

    Args:
        config: the model.
        length: the longest sequence.
        digest: digest of its files.
    """
    whole = sha256(digest.encode())
    if config.library_model is None:
        for rotary in (config.rotary, config.style.local_rotary):
            if rotary is not None:
                frequencies, size = frequencies_of(config, length, rotary)
                angles = torch.tensor(_POSITIONS)[:, None] * frequencies
                whole.update(torch.cat((frequencies[None] * size, angles.cos(), angles.sin())).numpy().tobytes())
    elif any(kind in str(config.raw.get(key)) for key in _ROPES for kind in _BY_LENGTH):
        whole.update(str(length).encode())
    path = config.path
    name = path.absolute().name if path.is_file() else path.resolve().name  # a file in the hub's cache is a link
    return f"{name}-{whole.hexdigest()[:12]}"


def describe_numerics(
    identity: str, config: ModelConfig, dtype: torch.dtype, kernels: str, invariance: RowInvariance
) -> Numerics:
    """Return what the bits of a model's tokens depend on; `identity` is what `identify` returns."""
    return Numerics(
        model=identity,
        dtype="+".join((str(dtype).removeprefix("torch."), *_quantised(config))),
        kernels=kernels if config.library_model is None else f"{kernels}+{config.library_model.library}",
        torch=torch.__version__,
        bits=sha256("/".join((invariance.bits, *_makers())).encode()).hexdigest()[: len(invariance.bits)],
        exact=invariance.exact,
    )


@cache
def _makers() -> tuple[str, ...]:
    def of(name: str) -> str:
        try:
            return f"{name}-{version(name)}"
        except PackageNotFoundError:  # run from a tree that is not installed
            return name

    return tuple(map(of, _MAKERS))


def inspect(
    model: str,
    dtype: str = "auto",
    tick: Callable[[str], None] = lambda label: None,
    *,
    dequantize: bool = False,
    device: str = "cpu",
) -> tuple[Numerics, dict[Case, Finding]]:
    """Run the self-check on whole weights and many more numbers of rows than at start, ignoring saved results.

    Args:
        model: a directory, a GGUF file or the name of an embedded model.
        dtype: dtype of activations, see `EngineConfig`.
        tick: function called with a label before every case.
        dequantize: whether quantised weights become plain numbers, see `EngineConfig`.
        device: device to compute on, see `EngineConfig`.

    Returns:
        The numerics of an engine, as its start would find them, and what the full check found.

    Raises:
        ConfigError, ModelError: the model cannot be served.
    """
    config = replace(describe_model(model), storage="plain" if dequantize else "stored")
    resolved = resolve_dtype(dtype, config)
    threads = env.threads()
    kernels, invariance = choose_kernels(select_kernels(device), cases(config, resolved), threads)
    everything = cases(config, resolved, _WHOLE)
    findings = check(kernels, everything, threads, sorted({*range(1, 65), *ROW_COUNTS, 500, 513, 1000}), tick)
    identity = identify(config, config.max_position, digest_model(config.path))
    loaded = config.library_model and load_model(config, resolved, min(config.max_position, _SHORT), kernels)
    if isinstance(loaded, transformers_model.TransformersModel):
        invariance = check_model(loaded, identity, kernels, invariance, threads)
        findings |= check_rows(loaded, identity, kernels, threads, ROW_COUNTS, tick)
    return describe_numerics(identity, config, resolved, kernels.name, invariance), findings


def check_model(
    model: CausalModel, identity: str, kernels: Kernels, invariance: RowInvariance, threads: int
) -> RowInvariance:
    """Return how far a model can be trusted: as far as its kernels, unless another library has a part in it."""
    if not isinstance(model, transformers_model.TransformersModel):
        return invariance
    return check_model_invariance(model, identity, kernels, invariance, threads)


def cases(config: ModelConfig, dtype: torch.dtype, limit: int = 1 << 15) -> list[Case]:
    """Return the operations and shapes that a model needs of the kernels, for the self-check.

    Args:
        config: the model's shape.
        dtype: dtype of weights and activations.
        limit: number of elements of a weight to check; see `product_case`.
    """
    hidden, experts = config.hidden_size, config.style.experts
    shapes = [product.shape for product in config.products()]
    every = [product_case("linear", inputs, outputs, dtype, limit) for outputs, inputs in shapes]
    if experts:
        every.append(product_case("logits", hidden, experts.count, dtype, limit))
    every.append(product_case("logits", hidden, config.vocab_size, dtype, limit))
    if stored := stored_kinds(config):
        of = weight_shapes(config)
        every += [product_case("linear", of[x][1], _OUTPUTS, dtype, limit, kind.name) for x, kind in stored.items()]
    # These do not cancel: in float32 no rounding hides their last bits.
    for exact in (dtype, torch.float32):
        every.append(Case("rms_norm", (hidden,), exact))
        every.append(Case("act_mul", (experts.width if experts else config.intermediate_size,), exact))
    cache = "" if config.kv_cache_dtype == "auto" else INT8.name
    every.append(Case("attention", (config.num_heads, config.num_kv_heads, config.head_dim), dtype, cache))
    return list(dict.fromkeys(every))


def _quantised(config: ModelConfig) -> list[str]:
    """Return the kinds of a model's weights in blocks or float16, the form of activations that meet blocks.

    The dtype of a cache that has one of its own comes last.
    """
    kinds = sorted(set(stored_kinds(config).values()), key=str)
    made = "-made" if config.storage in MADE else ""  # rounded here, which is not what a file of the same kind holds
    blocks = [f"int8x{CHUNK}"] if any(kind.block > 1 for kind in kinds) else []
    cache = [] if config.kv_cache_dtype == "auto" else [f"kv-{config.kv_cache_dtype}"]
    return [*(f"{kind}{made}" for kind in kinds), *blocks, *cache]
