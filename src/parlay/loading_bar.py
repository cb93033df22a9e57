"""A bar on a terminal while models are loaded: whose weights, how many bytes of how many, and the time left."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from parlay.checkpoints.download import size_text
from parlay.types.progress import OnProgress, Progress, ignore


@contextmanager
def loading_bar(begin: str | None = None, *, show: bool) -> Iterator[OnProgress]:
    """Show on stderr how far models are loaded; nothing is left of it at the end, an error's included.

    Args:
        begin: what to show before the size of the weights is known; None shows nothing until then, since a model may
            be downloaded first, which has its own bar.
        show: False shows nothing at all.
    """
    if not show:
        yield ignore
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.TextColumn("{task.fields[size]}", markup=False),
        progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(begin or "", total=None, size="")
    with ExitStack() as stack:
        if begin is not None:
            stack.enter_context(bar)
        started = begin is not None

        def on_progress(now: Progress) -> None:
            nonlocal started
            size = f"{size_text(now.done)} of {size_text(now.total)}"
            bar.update(task, description=f"loading {now.what}", completed=now.done, total=now.total, size=size)
            if not started:
                stack.enter_context(bar)
                started = True

        yield on_progress
        started = True  # what comes later, as from a process that was restarted, is not shown
