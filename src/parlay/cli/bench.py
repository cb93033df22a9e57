"""`parlay bench`: what users of this machine wait for; benchmarks of the engine's parts are in `benchmarks/`."""

from typing import Any, NoReturn

from parlay.cli import bench_methods, bench_perplexity, bench_speed
from parlay.cli.flags import Parser
from parlay.cli.report import add_json_flag
from parlay.errors import ConfigError

_LOAD = (
    "load on a server is measured by clients of OpenAI's protocol: `guidellm run`, `aiperf profile` or "
    "`vllm bench serve` against `parlay serve`"
)
_SCRIPT = "this is in the repository now: python -m benchmarks.{}"
# Where former commands are.
MOVED = {
    **dict.fromkeys(("load", "serve", "http"), _LOAD),
    "transformers": _SCRIPT.format("peers --peers transformers"),
    **{
        name: _SCRIPT.format(name)
        for name in ("peers", "ranks", "record", "replay", "roofline", "sampling", "startup", "structured")
    },
}


class _Moved(Parser):
    """The parser of a command that is elsewhere."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> NoReturn:
        """Say where, whatever the flags are."""
        raise ConfigError(f"{self.prog}: {MOVED[self.prog.rpartition(' ')[2]]}")


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser(
        "bench", help="measure this machine: speculation methods, latency, throughput, cost of quantisation"
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    bench_methods.add_parser(kinds)
    bench_speed.add_parsers(kinds)
    bench_perplexity.add_parser(kinds)
    for one in set(kinds.choices.values()):
        add_json_flag(one)
    for name in MOVED:
        kinds.choices[name] = _Moved(prog=f"{parser.prog} {name}")
