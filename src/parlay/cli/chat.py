"""`parlay chat`: talk to a model in the terminal."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay.cli.serving import SAID_NOTHING, Printer, add_model_flags, make_llm, make_params, summary
from parlay.errors import ConfigError, RequestError, nearest
from parlay.sampling.seeds import arrival_seed
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Prompt

if TYPE_CHECKING:
    from rich.console import Console

    from parlay.llm import LLM

_HELP = (
    "/reset forgets the conversation, /undo the last exchange; /plain answers again without speculation and "
    "compares; /set NAME VALUE changes a sampling parameter, such as /set temperature 0.7; /save FILE and /load FILE "
    'keep the conversation; /help says this again; /exit or the end of input leaves. A message that begins with """ '
    "goes on until the next one"
)
_BLOCK = '"""'
_ARGUMENTS = {"/set": 2, "/save": 1, "/load": 1}
MAX_TOKENS = 512
# The default temperature where neither user nor model gives one: at 1 small models lose the thread.
_SAMPLING = {"temperature": 0.7, "top_p": 0.9}
_BARS = " ▁▂▃▄▅▆▇█"


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model; every token in the colour of who guessed it",
        description="Talk to a model through its chat template. Answers are streamed, coloured by who guessed each "
        f"token. At the prompt, {_HELP}. Without a terminal every line of stdin is one message.",
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a conversation."""
    parser.add_argument("--system", metavar="TEXT", help="what to tell the model before the conversation")
    parser.add_argument("--chat-template", metavar="TEXT", help="a template in place of the model's own")
    own: dict[str, Any] = {name: f"the model's own, else {value}" for name, value in _SAMPLING.items()}
    add_model_flags(parser, max_tokens=MAX_TOKENS, **own)


def check_params(options: argparse.Namespace) -> None:
    """Report errors in the sampling parameters of a conversation before anything is loaded.

    Raises:
        ConfigError: they ask for several answers.
        RequestError: one is out of range.
    """
    if make_params(options).n != 1:
        raise ConfigError("a conversation goes on from one answer; leave --n at 1")


def params_for(options: argparse.Namespace, llm: "LLM") -> SamplingParams:
    """Return the sampling parameters of a conversation."""
    plain = llm.engine.config.generation_config in ("vllm", "none")
    defaults = llm.sampling_defaults or ({} if plain else _SAMPLING)
    return make_params(options, **{"max_tokens": MAX_TOKENS, **defaults})


def run(options: argparse.Namespace) -> int:
    """Load the model, then answer message by message."""
    from rich.console import Console

    check_params(options)
    llm = make_llm(options)
    params = params_for(options, llm)
    notes = Console(stderr=True, highlight=False)
    talk = Conversation(llm, params, options.system, options.chat_template, notes)
    if sys.stdin.isatty():
        notes.print(f"{llm.model_name}: {_HELP}", style="dim", markup=False)
        if not llm.engine.codec.prefers_chat:
            notes.print("this model completes code; `parlay run smollm2` talks", style="yellow", markup=False)
    commands: dict[str, Callable[..., None]] = {
        "/reset": talk.reset,
        "/undo": talk.undo,
        "/plain": talk.repeat_plainly,
        "/set": talk.set,
        "/save": talk.save,
        "/load": talk.load,
        "/help": lambda: notes.print(_HELP, style="dim", markup=False),
    }
    for text in _messages(_lines()):
        if text == "/exit":
            break
        command, *arguments = text.split(maxsplit=2) if text.startswith("/") else [""]
        if command and (command not in commands or len(arguments) != _ARGUMENTS.get(command, 0)):
            wrong = f"there is no {command}" if command not in commands else f"{command} is written otherwise"
            notes.print(f"{wrong}: {_HELP}", style="yellow", markup=False)
            continue
        try:
            if command:
                commands[command](*arguments)
            elif text:
                talk.say(text)
        except (ConfigError, OSError) as error:
            notes.print(str(error), style="yellow", markup=False)
        except RequestError as error:
            if not sys.stdin.isatty():
                raise
            notes.print(f"{error}; /reset begins anew", style="yellow", markup=False)
    return 0


class Conversation:
    """The conversation so far, and the model that answers."""

    def __init__(
        self, llm: "LLM", params: SamplingParams, system: str | None, template: str | None, notes: "Console"
    ) -> None:
        self._llm = llm
        self._params = params
        self._template = template
        self._notes = notes
        self._printer = Printer(llm, params)
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)
        self._turns = 0
        self._last: tuple[Prompt, SamplingParams, RequestOutput] | None = None

    def reset(self) -> None:
        """Forget everything but the system's message."""
        self._messages = list(self._start)

    def undo(self) -> None:
        """Forget the last exchange."""
        if len(self._messages) > len(self._start):
            self._messages = self._messages[:-2]

    def set(self, name: str, value: str) -> None:
        """Change a sampling parameter of the answers to come.

        Raises:
            ConfigError: there is no such parameter, or the value is out of range.
        """
        known = {f.name: getattr(self._params, f.name) for f in fields(SamplingParams)}
        if name not in known:
            raise ConfigError(f"there is no sampling parameter {name!r}{nearest(name, known)}")
        try:
            given = json.loads(value)
        except ValueError:
            given = value
        try:
            params = SamplingParams.parse({**known, name: given})
        except RequestError as error:
            raise ConfigError(str(error)) from None
        if params.n != 1:
            raise ConfigError("a conversation goes on from one answer; leave n at 1")
        self._params = params
        self._notes.print(f"{name} is {getattr(self._params, name)}", style="dim", markup=False)

    def save(self, file: str) -> None:
        """Write the conversation as JSON: a list of messages, as chat clients send."""
        Path(file).expanduser().write_text(json.dumps(self._messages, ensure_ascii=False, indent=1) + "\n", "utf-8")
        self._notes.print(f"{len(self._messages)} messages are in {file}", style="dim", markup=False)

    def load(self, file: str) -> None:
        """Continue a conversation that was saved.

        Raises:
            ConfigError: the file holds something else.
        """
        try:
            found = json.loads(Path(file).expanduser().read_text("utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) for m in found
        ):
            raise ConfigError(f"{file} holds no conversation; give a file that /save has written")
        self._messages = found
        self._notes.print(f"{len(found)} messages were loaded", style="dim", markup=False)

    def say(self, text: str) -> None:
        """Answer a message."""
        asked = [*self._messages, {"role": "user", "content": text}]
        prompt = self._llm.chat_prompt(asked, chat_template=self._template)
        self._turns += 1
        seed = self._params.seed
        if seed is None:
            seed = arrival_seed(self._llm.engine.config.seed, self._turns)
        params = replace(self._params, seed=seed)  # known here, so that the answer can be repeated
        answer, output = self._show(self._llm.stream(prompt, params))
        self._messages = [*asked, {"role": "assistant", "content": answer}]
        if output is not None:
            if not answer:
                self._notes.print(SAID_NOTHING, style="yellow")
            self._last = prompt, params, output
            self._note(output)

    def repeat_plainly(self) -> None:
        """Answer the last message again without speculation, and say where the tokens differ: nowhere."""
        if self._last is None:
            self._notes.print("there is no answer yet to compare with", style="yellow")
            return
        prompt, params, before = self._last
        _, output = self._show(self._llm.stream(prompt, replace(params, speculative={"enabled": False})))
        if output is not None:
            self._note(output)
            self._notes.print(difference(before, output), markup=False)

    def _show(self, outputs: Iterator[RequestOutput]) -> tuple[str, RequestOutput | None]:
        """Stream one answer; an interrupt ends the answer, not the conversation, and gives no output."""
        self._printer.restart()
        answer, output = "", None
        try:
            for output in outputs:
                answer = output.outputs[0].text
                self._printer.show(output.outputs[0], output.prompt_token_ids)
        except KeyboardInterrupt:
            outputs.close()  # type: ignore[attr-defined]
            output = None
        self._printer.console.print()
        return answer, output

    def _note(self, output: RequestOutput) -> None:
        """Add to an answer at a terminal who guessed, how fast it was, and how often guesses were right."""
        if self._printer.console.is_terminal:
            self._printer.console.print(self._printer.palette.legend())
            self._notes.print(summary(output), style="dim", markup=False)
            if bars := acceptance(output):
                self._notes.print(bars, style="dim", markup=False)


def acceptance(output: RequestOutput) -> str:
    """Return one line with a bar for each position of a draft: how often a guess there was right."""
    metrics = output.outputs[0].metrics
    shares = [count / metrics.drafts for count in metrics.accepted_per_position]
    bars = "  ".join(f"{i} {_BARS[round(s * (len(_BARS) - 1))]} {s:.0%}" for i, s in enumerate(shares, start=1))
    return f"right guesses by position  {bars}" if shares else ""


def difference(one: RequestOutput, other: RequestOutput) -> str:
    """Return one line that says whether two answers are of the same tokens."""
    first, second = one.outputs[0], other.outputs[0]
    if first.token_ids == second.token_ids:
        times = [o.outputs[0].metrics.finished - o.metrics.arrival for o in (one, other)]
        return (
            f"the same {len(first.token_ids)} tokens without speculation, "
            f"in {times[1]:.2f} s; with it {times[0]:.2f} s"
        )
    pairs = enumerate(zip(first.token_ids, second.token_ids, strict=False))
    shorter = min(len(first.token_ids), len(second.token_ids))
    place = next((i for i, (a, b) in pairs if a != b), shorter)
    return f"token {place + 1} differs without speculation; please report it with what parlay verify prints"


def _messages(lines: Iterator[str]) -> Iterator[str]:
    """Yield messages: lines, and blocks of lines between marks."""
    for line in lines:
        if not line.strip().startswith(_BLOCK):
            yield line.strip()
            continue
        block = [line.strip().removeprefix(_BLOCK)]
        while not block[-1].rstrip().endswith(_BLOCK):
            more = next(lines, None)
            if more is None:
                break
            block.append(more)
        yield "\n".join(block).rstrip().removesuffix(_BLOCK).strip("\n")


def _lines() -> Iterator[str]:
    """Yield the user's input, line by line; a terminal gets a prompt and, where there is one, a line editor."""
    if not sys.stdin.isatty():
        try:
            for line in sys.stdin:
                yield line.rstrip("\n")
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not valid {error.encoding}: {error.reason}") from None
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its editing keys and its history
    while True:
        try:
            yield input("> ")
        except EOFError:
            return
