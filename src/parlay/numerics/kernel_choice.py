"""Which kernels can be trusted here: the self-check's findings, remembered on disk, and what follows from them.

Saved findings may be lost or damaged: then the check just runs again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy
import torch

from parlay import env, system
from parlay.cache_file import CacheFile
from parlay.kernels.base import Kernels
from parlay.log import logger
from parlay.numerics import selfcheck
from parlay.numerics.digests import digest_code
from parlay.numerics.selfcheck import Case, Finding

_CODE = ("kernels", "weights", "numerics")  # folders whose files a finding is about
_SETTINGS = 64  # remembered: machines that share a home, numbers of threads, versions


@dataclass(frozen=True, slots=True)
class RowInvariance:
    """Findings of the self-check about some kernels.

    Attributes:
        broken: cases in which a row's bits depended on the rows beside it; usually none.
        bits: name of the arithmetic: a digest of all cases' results.
    """

    broken: tuple[Case, ...]
    bits: str

    @property
    def exact(self) -> bool:
        """Whether the same-tokens guarantee holds to the bit."""
        return not self.broken


def choose_kernels(kernels: Kernels, cases: Sequence[Case], threads: int) -> tuple[Kernels, RowInvariance]:
    """Return the first of `kernels` and their fallbacks that keep the contract, or `kernels` if none does.

    Args:
        kernels: the preferred kernels.
        cases: operations and shapes that a model needs of them.
        threads: number of threads that they will use.
    """
    invariance = check_invariance(kernels, cases, threads)
    if invariance.exact:
        return kernels, invariance
    fallback = kernels.fallback()
    while fallback is not None:
        found = check_invariance(fallback, cases, threads)
        if found.exact:
            logger.warning(
                "kernels: %s are not batch-invariant on this machine (%s); using the slower %s",
                kernels.name,
                _sample(invariance),
                fallback.name,
            )
            return fallback, found
        fallback = fallback.fallback()
    logger.warning(
        "THE SAME-TOKENS GUARANTEE DOES NOT HOLD TO THE BIT HERE: the kernels %s are not batch-invariant (%s), so "
        "tokens are the same up to floating point only; `parlay verify` shows more",
        kernels.name,
        _sample(invariance),
    )
    return kernels, invariance


def check_invariance(kernels: Kernels, cases: Sequence[Case], threads: int) -> RowInvariance:
    """Return what the self-check finds, running it only for cases without a saved finding."""
    return summarise(recall(kernels, cases, threads, lambda missing: selfcheck.check(kernels, missing, threads)))


def recall(
    kernels: Kernels, cases: Sequence[Case], threads: int, check: Callable[[list[Case]], dict[Case, Finding]]
) -> dict[Case, Finding]:
    """Return the saved finding of each case, running `check` for those without one."""
    cache = CacheFile("selfcheck", 1, most=_SETTINGS)
    setting = _setting(kernels.name, kernels.row_thresholds, threads)
    known = cache.read().get(setting, {})
    missing = [case for case in dict.fromkeys(cases) if str(case) not in known]
    if missing:
        fresh = {str(case): [list(found.row_counts), found.bits] for case, found in check(missing).items()}
        known |= fresh
        with cache.changing() as entries:
            entries[setting] = entries.get(setting, {}) | fresh
    found = {case: known[str(case)] for case in cases}
    return {case: Finding(tuple(counts), bits) for case, (counts, bits) in found.items()}


def summarise(findings: dict[Case, Finding]) -> RowInvariance:
    """Return what findings amount to."""
    digest = sha256(json.dumps([(str(case), f.bits) for case, f in findings.items()]).encode())
    return RowInvariance(tuple(case for case, f in findings.items() if f.row_counts), digest.hexdigest()[:8])


def _sample(invariance: RowInvariance) -> str:
    more = len(invariance.broken) - 1
    return f"{invariance.broken[0]}" + (f" and {more} more" if more else "")


def _setting(name: str, row_thresholds: tuple[int, ...], threads: int) -> str:
    """Return a digest of everything that a finding may depend on besides its case."""
    facts = {
        "kernels": [name, row_thresholds, digest_code(*_CODE)],
        "counts": selfcheck.ROW_COUNTS,
        "threads": threads,
        "cpu": system.processor(),
        "environment": env.arithmetic(),
        "libraries": [torch.__version__, _has_onednn(), numpy.__version__],
    }
    return sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
