"""Python's search for garbage, in processes whose users notice pauses: it stops every thread while it lasts."""

import gc


def leave_out_what_is_loaded() -> None:
    """Search only what comes from now on: of torch and the like alone, a search would take 0.1 s."""
    gc.collect()
    gc.freeze()


def search_seldom() -> None:
    """Search less often: a request's log-probabilities may be a million objects, and none of them garbage."""
    gc.set_threshold(20_000, 20, 20)
