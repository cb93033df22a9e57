"""Processes of engines forked from one that has torch and the package imported, which saves each of them seconds.

A front starts its engine with `multiprocessing`'s way of spawning. Here it forks from a server that imported the
package first, and is given the front's environment; pids, sentinels and exit codes are as always.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from parlay.server.remote import engine_link


class _Forks:
    """In the place of a context of `multiprocessing` that spawns."""

    def Process(self, *, target: Callable[..., None], args: tuple[Any, ...], **more: Any) -> BaseProcess:
        own = target, args, dict(os.environ)
        return get_context("forkserver").Process(target=_with_environment, args=own, **more)


def _with_environment(target: Callable[..., None], args: tuple[Any, ...], variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
    target(*args)


@contextmanager
def forking_engines() -> Iterator[None]:
    """Have all fronts of this process fork their engines."""
    get_context("forkserver").set_forkserver_preload(["parlay.engine.engine", "parlay.link.engine_server"])
    forkserver.ensure_running()  # with its socket where it outlives a test
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_link, "get_context", lambda _: _Forks())
        yield
