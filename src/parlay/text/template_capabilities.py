"""What a chat template shows of a conversation: found by rendering it on short ones, and remembered.

Nothing is inferred from a model's name, and little from the template's text: a template is a program. The words below
occur in no template, so a prompt that has them shows them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from parlay.errors import TemplateRefusalError
from parlay.text.messages import Content, Message, text_of, with_reasoning
from parlay.text.template_process import TemplateRunner

_SAID, _MORE = "xyzzy", "plugh"
_ROLES = ("system", "user", "assistant")
_AS_DATA = re.compile(rf"""["'](text|thinking)["']\s*:\s*["']{_SAID}""")  # a list of parts printed as it is


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template shows.

    Attributes:
        tools: descriptions of functions.
        refuses_tools: whether it refuses any messages with tools.
        developer: a message of the role `developer`, which it names, at the beginning.
        developers: messages of the role `developer` behind one of the role `system`.
        systems: several system messages at the beginning.
        late_system: a system message further down.
        text: roles whose content it reads as text.
        parts: roles whose content it reads as a list of parts.
        first_part: roles of whose parts it reads the first alone.
        thinking: parts of the type `thinking`.
    """

    tools: bool
    refuses_tools: bool
    developer: bool
    developers: bool
    systems: bool
    late_system: bool
    text: frozenset[str]
    parts: frozenset[str]
    first_part: frozenset[str]
    thinking: bool

    @property
    def system(self) -> bool:
        """Whether it shows a system message in any form."""
        return not self.known or "system" in self.text | self.parts | self.first_part

    @property
    def known(self) -> bool:
        """Whether it shows what a user says; if not, it is an odd one, and conversations are left as they are."""
        return bool(self.text | self.parts | self.first_part)

    def content(self, message: Message) -> Message:
        """Return a message whose content has the form that the template reads."""
        role, content = message["role"], message["content"]
        if content is None:
            return message
        thoughts = [] if isinstance(content, str) else [p["thinking"] for p in content if p["type"] == "thinking"]
        if thoughts and not self.thinking and role == "assistant":
            content = [part for part in content if part["type"] != "thinking"]
            message = message if "reasoning_content" in message else with_reasoning(message, "\n".join(thoughts))
            thoughts = []
        if role in self.parts and not isinstance(content, str) and (thoughts or len(content) > 1):
            return {**message, "content": content}
        text, like = text_of(content), role if role in _ROLES else "user"
        as_text = like in self.text or like not in self.parts | self.first_part
        return {**message, "content": text if as_text else _parts(text)}


def capabilities_of(template: str, special: Mapping[str, str], runner: TemplateRunner) -> Capabilities:
    """Return what a template shows.

    Args:
        template: the chat template, in Jinja's language.
        special: special tokens by their names.
        runner: where the template is run, once for all conversations.

    Raises:
        RequestError: it does not end, or needs too much memory.
    """
    return runner.remembered((template, "capabilities"), lambda: _find(template, special, runner))


def _find(template: str, special: Mapping[str, str], runner: TemplateRunner) -> Capabilities:
    probes = _probes()
    tools = [_function(_SAID)]
    ways = ("text", "parts")
    given = [variables(messages, special) for messages in probes.values()]
    described = [{**variables(probes[f"{way} filler"], special), "tools": tools} for way in ways]
    *found, with_text, with_parts = runner.run_each(template, [*given, *described])
    if all(isinstance(one, TemplateRefusalError) for one in found):  # perhaps it is made for tools alone
        found = runner.run_each(template, [{**one, "tools": [_function("?")]} for one in given])
    made = dict(zip(probes, found, strict=True))

    def shows(name: str, *words: str) -> bool:
        return _shows(made[name], words) and not _AS_DATA.search(str(made[name]))

    def roles(form: str, *words: str) -> frozenset[str]:
        return frozenset(role for role in _ROLES if shows(f"{form} {role}", *words))

    text, parts, first = roles("text", _SAID), roles("parts", _SAID, _MORE), roles("parts", _SAID)
    if unknown := "user" not in text | first:
        text = parts = first = frozenset()
    refused = isinstance(with_text, TemplateRefusalError) and isinstance(with_parts, TemplateRefusalError)
    takes_others = any(isinstance(made[f"{way} filler"], str) for way in ways)
    developer = "developer" in template and (unknown or shows("developer", _SAID))
    developers = unknown or (shows("developers", _SAID, _MORE) and shows("late developer", _SAID, _MORE))
    return Capabilities(
        # One that refuses these messages in any case is assumed to handle tools itself.
        tools=(refused and not takes_others) or _shows(with_text, [_SAID]) or _shows(with_parts, [_SAID]),
        refuses_tools=refused and takes_others,
        developer=developer,
        developers=developer and developers,
        systems=unknown or shows("systems", _SAID, _MORE),
        late_system=unknown or shows("late system", _SAID, _MORE),
        text=text,
        parts=parts,
        first_part=first,
        thinking=shows("thinking", _SAID, _MORE),
    )


def _probes() -> dict[str, list[Message]]:
    """Return short conversations by what they are about."""
    user, answer, said = _message("user", "?"), _message("assistant", "!"), _message("system", _SAID)
    thinking = [{"type": "thinking", "thinking": _SAID}, {"type": "text", "text": _MORE}]
    made = {
        "developer": [_message("developer", _SAID), user],
        "developers": [said, _message("developer", _MORE), user],
        "late developer": [said, user, answer, _message("developer", _MORE), user],
        "systems": [said, _message("system", _MORE), user],
        "late system": [said, user, answer, _message("system", _MORE), user],
        "thinking": [user, {"role": "assistant", "content": thinking}, user],
    }
    forms: dict[str, tuple[Content, Content]] = {"text": (_SAID, "?"), "parts": (_parts(_SAID, _MORE), _parts("?"))}
    for form, (content, other) in forms.items():
        system, user, answer = ({"role": role, "content": content} for role in _ROLES)
        filler = {"role": "user", "content": other}
        made |= {
            f"{form} filler": [filler],
            f"{form} system": [system, filler],
            f"{form} user": [user],
            f"{form} assistant": [filler, answer, filler],
        }
    return made


@dataclass(frozen=True, slots=True)
class CallHistory:
    """What there is in the calls of a conversation that not all templates show.

    Attributes:
        tools: descriptions of functions, given to the template.
        beside: text beside calls.
        apart: text beside calls, in a message of its own before.
        several: calls in one message.
        answered: results that a message of the user's follows.
    """

    tools: bool
    beside: bool
    apart: bool
    several: bool
    answered: bool


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form in which a template shows calls and results.

    Attributes:
        encoded: whether arguments are text.
        null: no content is null, not an empty text.
        short: ids are nine letters and digits.
        named: results have the name of the function.
    """

    encoded: bool
    null: bool
    short: bool
    named: bool


# Those that differ least from OpenAI's first.
_FORMS = [CallForm(*one) for one in sorted(product((False, True), repeat=4), key=sum)]
_WORDS = ("plover", "grue", "frotz", "nitfol")  # of a call: its name, a parameter, its value, the result
_OTHERS = ("rezrov", "gnusto", "yomin", "izyuk")


def call_form(
    template: str,
    special: Mapping[str, str],
    runner: TemplateRunner,
    capabilities: Capabilities,
    history: CallHistory,
) -> CallForm | None:
    """Return the form in which a template shows all of such a history; None if there is none.

    Raises:
        RequestError: the template does not end, or needs too much memory.
    """

    def find() -> CallForm | None:
        if not capabilities.known:
            return _FORMS[0]
        tools = [_function("plugh")] if history.tools else None
        given = [
            {**variables([capabilities.content(m) for m in _called(form, history)], special), "tools": tools}
            for form in _FORMS
        ]
        words = [
            *_WORDS,
            *(_OTHERS if history.several else ()),
            *([_SAID] if history.beside or history.apart else ()),
        ]
        as_data = re.compile(rf"'{_WORDS[1]}': '{_WORDS[2]}'")  # Python's, which no model is trained on
        made = runner.run_each(template, given)
        shown = (
            form
            for form, text in zip(_FORMS, made, strict=True)
            if all(_shows(text, [word]) for word in words) and not as_data.search(str(text))
        )
        return next(shown, None)

    return runner.remembered((template, history), find)


def _called(form: CallForm, history: CallHistory) -> list[Message]:
    """Return a conversation with such a history."""
    calls, results = [], []
    for number, (name, key, value, result) in enumerate([_WORDS, *([_OTHERS] if history.several else [])]):
        arguments = f'{{"{key}": "{value}"}}' if form.encoded else {key: value}
        called = f"abcdefg{number:02}" if form.short else f"call_{number:016}"
        calls.append({"id": called, "type": "function", "function": {"name": name, "arguments": arguments}})
        named = {"name": name} if form.named else {}
        results.append({"role": "tool", "tool_call_id": called, "content": result, **named})
    content = _SAID if history.beside else None if form.null else ""
    between = [] if history.answered else [_message("assistant", "!")]
    user = _message("user", "?")
    before = [user, _message("assistant", _SAID)] if history.apart else [user]
    return [*before, {"role": "assistant", "content": content, "tool_calls": calls}, *results, *between, user]


def variables(messages: Sequence[Mapping[str, Any]], special: Mapping[str, str]) -> dict[str, Any]:
    """Return what a template is given where nothing else is said."""
    return {**special, "tools": None, "documents": None, "messages": messages, "add_generation_prompt": True}


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _function(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "?"}}, "required": ["x"]}
    return {"type": "function", "function": {"name": name, "description": "?", "parameters": parameters}}


def _shows(made: str | TemplateRefusalError, words: Sequence[str]) -> bool:
    """Return whether a prompt has some words in order; templates may change their case."""
    return isinstance(made, str) and re.search(".*".join(words), made, re.DOTALL | re.IGNORECASE) is not None
