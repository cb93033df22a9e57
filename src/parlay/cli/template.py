"""The chat template that `--chat-template` gives: a file, or the template itself."""

import argparse
from pathlib import Path

from parlay.errors import ConfigError, shown

_MARKS = ("{{", "{%", "{#")  # one of these is in every template that reads its messages


def add_template_flag(parser: argparse._ActionsContainer) -> None:
    """Add `--chat-template`, which `read_template` reads."""
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="chat template in place of the model's own: a file, or the template itself",
    )


def read_template(given: str | None) -> str | None:
    """Return the template that a file holds or a text is, in Jinja's language; None stays None.

    Raises:
        ConfigError: it is neither, or the file cannot be read.
    """
    if given is None or any(mark in given for mark in _MARKS):
        return given
    path = Path(given).expanduser()
    try:
        found = path.is_file()
        text = path.read_text("utf-8") if found else ""
    except (OSError, ValueError) as error:  # also a name that no file can have, and no UTF-8
        raise ConfigError(f"--chat-template {shown(given)} cannot be read: {error}") from None
    if not found:
        raise ConfigError(
            f"--chat-template {shown(given)}: there is no such file, and the text has no {{{{ }}}} or {{% %}}; give "
            "a file with a template in Jinja's language, or the template itself"
        )
    if not any(mark in text for mark in _MARKS):
        raise ConfigError(f"--chat-template {given}: the file has no {{{{ }}}} or {{% %}}, so it is no template")
    return text
