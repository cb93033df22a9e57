"""Chooses the kernels for a device."""

from parlay import env
from parlay.errors import ConfigError, nearest, shown
from parlay.kernels.base import Kernels
from parlay.log import logger


def select_kernels(device: str = "cpu", force: str | None = None) -> Kernels:
    """Return the kernels for `device`: native where they were built, else the torch twins.

    Args:
        device: "cpu".
        force: "native" or "reference"; by default PARLAY_KERNELS decides, then what is there.
    """
    if device != "cpu":
        raise ConfigError(f"there are no kernels for the device {device!r}{nearest(device, ['cpu'])}")
    asked = force or env.kernels()
    if asked not in (None, "native", "reference"):
        raise ConfigError(f"there are no kernels {shown(asked)}{nearest(asked, ['native', 'reference'])}")
    kernels = _reference() if asked == "reference" else _native(required=asked == "native")
    logger.info("kernels: %s", kernels.name)
    return kernels


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
        logger.warning("kernels: the native ones cannot be imported (%s); the slow twins run instead", error)
        return _reference()
    return (CheckedKernels if env.checks_kernels() else NativeKernels)(env.isa())


def _reference() -> Kernels:
    from parlay.kernels.reference import ReferenceKernels

    return ReferenceKernels()
