"""How the served model writes calls and reasoning, and what follows for a request."""

from dataclasses import dataclass
from typing import Any

from parlay.server.context import Context
from parlay.server.openai.fields import ChatFields
from parlay.server.openai.reasoning import Marks, marks_of
from parlay.server.openai.tool_formats import FORMATS, ToolFormat, format_of
from parlay.server.openai.tools import Tools, tools_shown

IGNORED = (
    "the model's chat template ignores tools: the system message describes them instead, and calls are expected "
    "between <tool_call> tags"
)


@dataclass(frozen=True, slots=True)
class ModelStyle:
    """What to look for in the answers to one request.

    Attributes:
        form: how calls are written.
        marks: around reasoning, if there is any.
        special: whether some of that are special tokens, which answers have to show.
        variables: of the template.
        warnings: for the client.
    """

    form: ToolFormat
    marks: Marks | None
    special: bool
    variables: dict[str, Any]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, context: Context, fields: ChatFields, tools: Tools) -> "ModelStyle":
        """Return the style of a request with the model's chat template."""
        codec, config = context.engine.codec, context.config
        template = codec.template_for(fields.chat_template, tools=bool(tools_shown(fields, tools)))
        form, warnings = format_of(config.tool_call_parser, template), []
        if tools.mode != "none" and template is not None and not codec.shows_tools(template):
            form = FORMATS["hermes"]
            warnings.append(IGNORED)
        wanted: dict[str, Any] = {}
        for name in ("reasoning_effort", "verbosity"):
            value = getattr(fields, name)
            if value is not None:
                variables = {name: value} | ({"enable_thinking": False} if value == "none" else {})
                wanted |= variables
                if not any(variable in (template or "") for variable in variables):
                    warnings.append(f"{name} has no effect: the model's chat template does not read it")
        marks = marks_of(config.reasoning_parser, template)
        special = (tools.mode == "auto" and form.special) or (marks is not None and marks.special)
        return cls(form, marks, special, {**wanted, **fields.chat_template_kwargs}, tuple(warnings))
