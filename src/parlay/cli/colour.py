"""Text coloured by who drafted each token."""

from collections.abc import Iterable, Sequence

from rich.text import Text
from tokenizers import Tokenizer

from parlay.engine.attribution import Attribution
from parlay.types.output import Rejected

PLAIN = "target"
_PALETTE = ("green", "cyan", "magenta", "yellow", "blue", "red")


class Palette:
    """A colour for each source, given out in order of appearance; the target's own tokens stay uncoloured."""

    def __init__(self, sources: Iterable[str] = ()) -> None:
        self._styles: dict[str, str] = {PLAIN: ""}
        for source in sources:
            self.style(source)

    def style(self, source: str) -> str:
        """Return the style of a source."""
        if source not in self._styles:
            self._styles[source] = "bold " + _PALETTE[(len(self._styles) - 1) % len(_PALETTE)]
        return self._styles[source]

    def legend(self, sources: Iterable[str] | None = None) -> Text:
        """Return one line that names those who drafted in their colours, all or `sources`; nothing without any."""
        named = [source for source in self._styles if source != PLAIN and (sources is None or source in sources)]
        line = Text("drafts by" if named else "")
        for source in named:
            line.append(" ").append(source, style=self._styles[source])
        return line


class Colourer:
    """Turns a growing completion into pieces of coloured text, never beyond the completion's own text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        palette: Palette,
        prompt: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        """Start behind the tokens of a prompt."""
        self._palette = palette
        self._attribution = Attribution(tokenizer, prompt, skip_special_tokens=skip_special_tokens)

    def update(
        self,
        tokens: Sequence[int],
        sources: Sequence[str],
        text: str,
        rejected: Sequence[Rejected] = (),
        *,
        finished: bool = False,
    ) -> Text:
        """Return what `text` has that was not returned before; arguments are those of `Attribution.update`.

        Rejected nodes are struck through.
        """
        new = Text()
        for piece, source, accepted in self._attribution.update(tokens, sources, text, rejected, finished=finished):
            style = "" if source is None else self._palette.style(source)
            new.append(piece, style=style if accepted else f"{style} strike".strip())
        return new
