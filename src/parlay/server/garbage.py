"""Python's search for garbage, in a process whose users notice pauses."""

import gc


def search_seldom() -> None:
    """Leave out what is there now, which stays, and search the rest less often.

    To be called once everything is loaded. A search stops all threads for as long as it takes: 0.1 s for what torch
    alone has loaded, more where a request has many log-probabilities.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
