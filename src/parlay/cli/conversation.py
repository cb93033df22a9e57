"""A conversation with a model: what was said, and how the next answer is made and shown."""

import json
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from parlay.cli.serving import EMPTY_ANSWER, Printer, cut_off, summary
from parlay.errors import ConfigError, RequestError, nearest
from parlay.sampling.seeds import mix
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Prompt

if TYPE_CHECKING:
    from rich.console import Console

    from parlay.llm import LLM

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = ("temperature", "top_p", "max_tokens", "seed")  # by /set, whatever they are
_SEEDS = 1 << 31


class Conversation:
    """The conversation so far, and the model that answers."""

    def __init__(
        self,
        llm: "LLM",
        params: SamplingParams,
        system: str | None,
        template: str | None,
        notes: "Console",
        *,
        figures: str = "line",
    ) -> None:
        """Start without messages.

        Args:
            llm: the engine that answers.
            params: sampling parameters of the answers; without a seed one is drawn.
            system: what the model is given before the conversation.
            template: a chat template in place of the model's own.
            notes: the console for everything but answers.
            figures: what a terminal gets under an answer: `none`, a `line` or `all`.
        """
        self._llm = llm
        self._params = params
        self._template = template
        self._notes = notes
        self._figures = figures
        self._printer = Printer(llm, params, coloured=figures != "none")
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)
        self._drawn = random.SystemRandom().randrange(_SEEDS)
        self._turns = 0
        self._last: tuple[Prompt, SamplingParams, RequestOutput] | None = None

    def reset(self) -> None:
        """Remove everything but the system's message."""
        self._messages = list(self._start)
        self._last = None
        self._note("new conversation")

    def undo(self) -> None:
        """Remove the last exchange."""
        if len(self._messages) <= len(self._start):
            self._note("there is nothing to undo")
            return
        self._messages = self._messages[:-2]
        self._note("the last exchange is removed")

    def show_params(self) -> None:
        """Show the sampling parameters."""
        values = {f.name: getattr(self._params, f.name) for f in fields(SamplingParams)}
        usual = {f.name: getattr(SamplingParams(), f.name) for f in fields(SamplingParams)}
        shown = {name: v for name, v in values.items() if name in _SHOWN or v != usual[name]}
        unset = {"max_tokens": "as many as the context has room for", "seed": "drawn"}
        for name, value in shown.items():
            self._note(f"{name} {unset[name] if value is None and name in unset else value}")

    def set(self, name: str, value: str) -> None:
        """Change a sampling parameter of the answers to come, or the `system` message.

        Raises:
            ConfigError: there is no such parameter, or the value is out of range.
        """
        if name == "system":
            text = value.strip("\"'")
            system = [{"role": "system", "content": text}] if text else []
            self._messages, self._start = system + self._messages[len(self._start) :], system
            self._note("the system message is set")
            return
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
            raise ConfigError("chat needs one completion per turn; leave n at 1")
        self._params = params
        self._note(f"{name} is {getattr(self._params, name)}")

    def save(self, file: str) -> None:
        """Write the conversation as JSON: a list of messages, as chat clients send.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            text = json.dumps(self._messages, ensure_ascii=False, indent=1) + "\n"
            Path(file).expanduser().write_text(text, "utf-8")
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
        self._note(f"{len(self._messages)} messages are in {file}")

    def load(self, file: str) -> None:
        """Continue a conversation that was saved.

        Raises:
            ConfigError: the file cannot be read, or holds something else.
        """
        try:
            found = json.loads(Path(file).expanduser().read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) for m in found
        ):
            raise ConfigError(f"{file} holds no conversation; give a file that /save has written")
        self._messages, self._last = found, None
        self._note(f"{len(found)} messages were loaded")

    def answer(self, text: str) -> bool:
        """Answer a message; whether a structured answer was cut, which makes it invalid."""
        messages = [*self._messages, {"role": "user", "content": text}]
        prompt = self._llm.chat_prompt(messages, chat_template=self._template)
        self._turns += 1
        seed = mix(self._drawn, self._turns) if self._params.seed is None else self._params.seed
        params = replace(self._params, seed=seed)  # known here, so that the answer can be repeated
        answer, output = self._show(self._llm.stream(prompt, params))
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        if output is None:
            return False
        if not answer:
            self._notes.print(EMPTY_ANSWER, style="yellow")
        self._last = prompt, params, output
        cut = self._report(params, output)
        return cut and params.structured_outputs is not None

    def repeat_plainly(self) -> None:
        """Answer the last message again without speculation, and say where the tokens differ: nowhere."""
        if self._last is None:
            self._notes.print("there is no answer yet to compare with", style="yellow")
            return
        prompt, params, before = self._last
        _, output = self._show(self._llm.stream(prompt, replace(params, speculative={"enabled": False})))
        if output is not None:
            self._report(params, output)
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

    def _report(self, params: SamplingParams, output: RequestOutput) -> bool:
        """Say whether an answer was cut and, at a terminal, how fast it was and who drafted."""
        cut = cut_off(output, params, self._llm.engine.max_model_len)
        if cut:
            self._notes.print(cut, style="yellow", markup=False)
        if self._figures == "none" or not self._printer.console.is_terminal:
            return bool(cut)
        line = Text(summary(output))
        if self._printer.coloured and (legend := self._printer.palette.legend(output.outputs[0].sources)):
            line.append(", ").append_text(legend)
        self._notes.print(line, style="dim")
        if self._figures == "all":
            if bars := acceptance(output):
                self._note(bars)
            self._note(f"seed {params.seed}")
        return bool(cut)

    def _note(self, text: str) -> None:
        self._notes.print(text, style="dim", markup=False)


def acceptance(output: RequestOutput) -> str:
    """Return one line with a bar for each position of a draft: how often a draft token there was accepted."""
    metrics = output.outputs[0].metrics
    shares = [count / metrics.drafts for count in metrics.accepted_per_position]
    bars = "  ".join(f"{i} {_BARS[round(s * (len(_BARS) - 1))]} {s:.0%}" for i, s in enumerate(shares, start=1))
    return f"accepted by position  {bars}" if shares else ""


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
