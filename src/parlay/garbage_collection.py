"""Python's garbage collection, in processes whose users notice pauses: it stops every thread while it lasts."""

import ctypes
import gc

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the interpreter is released meanwhile


def freeze_loaded() -> None:
    """Collect only objects made from now on: going through torch and the like alone would take 0.1 s.

    So nothing is collected here either. Of what a start makes, a few hundred objects are garbage.
    """
    gc.freeze()


def raise_threshold() -> None:
    """Collect less often: a start makes half a million objects, a request's log-probabilities may be a million.

    None of them is garbage, and looking through them again and again takes a tenth of a start.
    """
    gc.set_threshold(20_000, 20, 20)


def trim_memory() -> None:
    """Give free memory back to the system, where the C library can (glibc); after what has taken much of it."""
    if _TRIM is not None:
        _TRIM(0)
