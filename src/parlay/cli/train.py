"""`parlay train`: train a draft head for a target."""

import argparse
from typing import TYPE_CHECKING, Any

from parlay.cli.flags import Parser, add_flags, given
from parlay.config import build
from parlay.registry import Registry
from parlay.train.options import TrainOptions

if TYPE_CHECKING:
    from parlay.train.run import TrainProgress

# The names are known without heavy imports.
_METHODS = Registry("parlay.proposers.methods", "method to train", "training", files=False)


_FEW_STEPS = 200


class _MethodParser(Parser):
    """A parser that has the flags of its method only once it is used: the method's file imports torch."""

    def complete(self) -> None:
        """Add the flags of the method."""
        if self.get_default("own") is None:
            own = _METHODS.load(self.get_default("method")).Options
            self.set_defaults(own=own)
            add_flags(self, TrainOptions)
            add_flags(self, own)


def add_parser(commands: Any) -> None:
    """Register the command, with a subcommand for every method that can be trained."""
    parser = commands.add_parser(
        "train",
        help="train a draft head for a target",
        description="Train a draft head for a target, and write it in its public format. A run that was stopped goes "
        "on where it was when the same command is given again.",
    )
    kinds = parser.add_subparsers(required=True, metavar="METHOD", parser_class=_MethodParser)
    for name in _METHODS.names():
        kinds.add_parser(name, help=f"train for the method {name}").set_defaults(method=name, run=run)


def run(options: argparse.Namespace) -> int:
    """Train, with a bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    values = vars(options)
    chosen = build(TrainOptions, given(TrainOptions, values), "option")
    own = build(options.own, given(options.own, values), f"{options.method} option")
    from parlay.train.run import train

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with Bar(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}
        seen: dict[str, Any] = {}
        steps = 0

        def watch(progress: "TrainProgress") -> None:
            nonlocal steps
            steps = progress.total if progress.loss is not None else steps
            if progress.doing not in tasks:
                tasks[progress.doing] = bar.add_task(progress.doing, total=progress.total, figures="")
            bar.update(tasks[progress.doing], completed=progress.done, figures=_figures(progress))
            if not console.is_terminal and progress.figures is not seen.get(progress.doing):
                # A bar in a file is of no use: there, every measurement has a line.
                seen[progress.doing] = progress.figures
                console.print(
                    f"{progress.doing} {progress.done}/{progress.total} {_figures(progress)}", soft_wrap=True
                )

        try:
            found = train(options.method, chosen, own, watch)
        except KeyboardInterrupt:
            bar.stop()
            console.print("stopped; the same command goes on from the last checkpoint")
            raise
    console.print(
        f"held-out loss {found.loss:.3f}, accuracy {_shares(found.accuracy)}; the head is in {chosen.output}",
        soft_wrap=True,
    )
    if steps < _FEW_STEPS:
        console.print(few(steps), style="yellow", soft_wrap=True)
    return 0


def few(steps: int) -> str:
    """Return what to say of a run of too few steps for a useful head."""
    some = "1 step" if steps == 1 else f"{steps} steps"
    return (
        f"{some} of training are far too few for a head that pays, which takes thousands; give more --data, or let "
        "the target write answers with --generate (docs/training.md)"
    )


def _figures(progress: "TrainProgress") -> str:
    parts = [] if progress.loss is None else [f"loss {progress.loss:.3f}"]
    if progress.figures is not None:
        parts.append(f"held out {progress.figures.loss:.3f}: {_shares(progress.figures.accuracy)}")
    return ", ".join(parts)


def _shares(accuracy: tuple[float, ...]) -> str:
    return " ".join(f"{share:.0%}" for share in accuracy)
