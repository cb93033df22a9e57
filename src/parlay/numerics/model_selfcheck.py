"""The self-check of models that another library computes in part: the whole model, rows alone and among others.

What that library does between the kernels cannot be checked one operation at a time, because there is no list of it.
So the model itself is run: a few tokens one by one, and the same tokens in passes of every size, each of them as
often as the pass has room for. Every pass writes the same keys and values to the same slots.

Data that cancel cannot be had here, and rounding to bfloat16 hides most differences between orders of summation.
Where torch does more than is known to be row-invariant, rows in bfloat16 therefore count as dependent without having
been seen to be so.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256

import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels
from parlay.log import logger
from parlay.models.transformers.model import TransformersModel
from parlay.numerics.digests import digest_code
from parlay.numerics.kernel_choice import RowInvariance, recall, summarise
from parlay.numerics.selfcheck import DISTINCT, FEW, Case, Finding, Rows, compare
from parlay.runner.batch import Batch
from parlay.runner.runner import ModelRunner

_BLOCK = 16
_SEED = 11


def check_model_invariance(
    model: TransformersModel, identity: str, kernels: Kernels, invariance: RowInvariance, threads: int
) -> RowInvariance:
    """Return what kernels' invariance amounts to for a model, with a warning if the rest of it is not to be trusted.

    Args:
        model: the model to check.
        identity: what `identify` returns of its weights and config.
        kernels: kernels that it runs with.
        invariance: row invariance of these kernels.
        threads: number of threads that the kernels and torch may use.
    """
    case = _case(model, identity)
    (finding,) = recall(kernels, [case], threads, lambda _: check_rows(model, identity, kernels, threads)).values()
    whole = summarise({case: finding})
    if whole.broken:
        logger.warning(
            "THE SAME-TOKENS GUARANTEE DOES NOT HOLD TO THE BIT HERE: %s is computed by another library in part, and "
            "%s, so tokens are the same up to floating point only; `parlay verify` shows more",
            model.config.path,
            f"bfloat16 hides what torch's {', '.join(model.rest)} may do to a row"
            if _blind(model)
            else f"a row has other bits among {finding.row_counts[0]} rows than alone",
        )
    bits = sha256((invariance.bits + whole.bits).encode()).hexdigest()[: len(invariance.bits)]
    return replace(invariance, broken=invariance.broken + whole.broken, bits=bits)


def check_rows(
    model: TransformersModel,
    identity: str,
    kernels: Kernels,
    threads: int,
    row_counts: Sequence[int] = FEW,
    tick: Callable[[str], None] = lambda label: None,
) -> dict[Case, Finding]:
    """Run a model's rows alone and in passes of `row_counts`.

    Args:
        model: the model to check.
        identity: what `identify` returns of its weights and config.
        kernels: kernels that it runs with. Their threads and torch's are changed, and are `threads` in the end.
        threads: number of threads that the larger passes may use.
        row_counts: sizes of the passes.
        tick: function called with a label before the comparison.
    """
    case = _case(model, identity)
    found = compare(kernels, {case: _rows(model, kernels)}, threads, lambda _: row_counts, tick)
    return {case: replace(found[case], row_counts=tuple(row_counts))} if _blind(model) else found


def _blind(model: TransformersModel) -> bool:
    return model.dtype is not torch.float32 and bool(model.rest)


def _case(model: TransformersModel, identity: str) -> Case:
    config = model.config
    library = config.library_model.library if config.library_model else ""
    between = digest_code("models", "checkpoints")[:8]  # the kernels and the library
    return Case(f"{identity} with {library} {between}", (config.num_layers, config.hidden_size), model.dtype)


def _rows(model: TransformersModel, kernels: Kernels) -> Rows:
    runner = ModelRunner(model, kernels, -(-DISTINCT // _BLOCK), _BLOCK)
    vocab = model.config.vocab_size
    tokens = torch.randint(vocab, (DISTINCT,), generator=torch.Generator().manual_seed(_SEED))

    def rows(chosen: Tensor) -> Tensor:
        """Run tokens `chosen` of one text, each of which sees those before it."""
        none = torch.zeros(len(chosen) + 1, dtype=torch.int32)
        view = AttentionMetadata(
            torch.zeros((1, 1), dtype=torch.int32),
            none[1:],
            none[1:],
            chosen.int() + 1,
            none,
            torch.zeros(0, dtype=torch.int32),
        )
        batch = Batch(tokens[chosen], chosen.int(), chosen, view, (0, len(chosen)))
        hidden = runner.forward(batch)
        return torch.cat((hidden.float(), runner.logits(hidden, range(len(chosen)))), dim=1)

    return rows
