"""Chooses the kernels for a device, and looks whether torch is one that they were tested with."""

import re

import torch

from parlay import env
from parlay.device import find_device
from parlay.errors import ConfigError, nearest, shown
from parlay.kernels.base import Kernels
from parlay.log import logger

# Minor versions of torch that the suite was run with, the first and the last; pyproject.toml has the same bounds.
# Each may sum in an order of its own: that is why there is a last one.
TORCH = (2, 13), (2, 14)
_TORCH_ON_GPU = (2, 11)  # where torch computes little that counts: its Triton, 3.6, is the oldest that compiles them


def select_kernels(device: str = "cpu", force: str | None = None, longest: int = 1 << 20) -> Kernels:
    """Return the kernels for `device`: on the CPU native where they were built, else the torch twins.

    Args:
        device: "cpu" or "cuda".
        force: "native" or "reference" on the CPU; by default PARLAY_KERNELS decides, then what is there.
        longest: most tokens of a sequence.

    Raises:
        ConfigError: there are none of these, or torch is too old.
    """
    _check_torch(_TORCH_ON_GPU if device == "cuda" else TORCH[0])
    if device == "cuda":
        found = find_device(device)
        from parlay.kernels.triton.kernels import TritonKernels

        logger.warning(
            "kernels: those for GPUs are experimental, see docs/gpu.md; run `parlay verify MODEL --device cuda` "
            "before you rely on them"
        )
        kernels: Kernels = TritonKernels(found, _on_host(force), longest)
    elif device == "cpu":
        kernels = _on_host(force)
    else:
        raise ConfigError(f"unknown device {device!r}{nearest(device, ['cpu', 'cuda'])}")
    logger.info("kernels: %s", kernels.name)
    return kernels


def _on_host(force: str | None) -> Kernels:
    requested = force or env.kernels()
    if requested not in (None, "native", "reference"):
        raise ConfigError(f"unknown kernels {shown(requested)}{nearest(requested, ['native', 'reference'])}")
    return _reference() if requested == "reference" else _native(required=requested == "native")


def instruction_sets() -> list[str]:
    """Return those that the native kernels can use here, best first; none where they were not built."""
    try:
        from parlay.kernels import _native
    except ImportError:
        return []
    return _native.isas()


def _native(required: bool) -> Kernels:
    try:
        from parlay.kernels.checked import CheckedKernels
        from parlay.kernels.cpu import NativeKernels
    except ImportError as error:
        if required:
            raise ConfigError(f"the native kernels cannot be imported: {error}") from error
        logger.warning("kernels: the native ones cannot be imported (%s); using the slow reference kernels", error)
        return _reference()
    if instruction_sets() == ["baseline"]:
        logger.warning(
            "kernels: this processor has none of the instruction sets that they are made for (AVX2 or later on "
            "x86-64, NEON on ARM); using baseline kernels, several times slower"
        )
    return (CheckedKernels if env.checks_kernels() else NativeKernels)(env.isa())


def _reference() -> Kernels:
    from parlay.kernels.reference import ReferenceKernels

    return ReferenceKernels()


def _check_torch(least: tuple[int, int]) -> None:
    """Refuse a torch that is too old, and warn of one that is newer than those that were tested.

    Raises:
        ConfigError: it is too old.
    """
    installed = str(torch.__version__)
    found = re.match(r"(\d+)\.(\d+)", installed)
    oldest, newest = (".".join(map(str, one)) for one in (least, TORCH[1]))
    if found is None:
        return
    minor = int(found[1]), int(found[2])
    if minor < least:
        raise ConfigError(f"torch {installed} is too old; install {oldest} to {newest}")
    if minor > TORCH[1]:
        logger.warning(
            "torch %s is newer than those that parlay was tested with (%s to %s): `parlay verify` shows whether the "
            "same-tokens guarantee holds with it",
            *(installed, oldest, newest),
        )
