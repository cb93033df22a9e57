"""Python's garbage collection, in processes whose users notice pauses: it stops every thread while it lasts."""

import gc


def leave_out_what_is_loaded() -> None:
    """Collect only objects made from now on: going through torch and the like alone would take 0.1 s."""
    gc.collect()
    gc.freeze()


def search_seldom() -> None:
    """Collect less often: a request's log-probabilities may be a million objects, and none of them garbage."""
    gc.set_threshold(20_000, 20, 20)
