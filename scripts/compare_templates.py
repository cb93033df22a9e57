"""Chat templates through parlay and through transformers, over conversations that clients send.

python scripts/compare_templates.py FOLDER

Reads every `.jinja` and `.gguf` file, and every model directory's templates. Each difference has a reason, one of those
that parlay's documentation names; the exit status is 1 if one has none.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from parlay.errors import ParlayError, RequestError
from parlay.text.chat import HERE, ChatOptions, render
from parlay.text.conform import conformed
from parlay.text.messages import Message, plain
from parlay.text.template_files import read_templates

EQUAL, UNEXPLAINED = "equal", "UNEXPLAINED"
# Changes that are made only where a template loses or refuses what a client sent.
NEEDED = {"history in text", "system in the first user turn", "one system message"}
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}


def called(name: str, arguments: Any, number: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": f"call_{number:024}", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def result(text: Any, number: int = 1) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number:024}", "content": text}


def said(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "Größe 大"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "für 天氣", "parameters": CITY}}]
USER, ANSWER, SYSTEM = said("user", "QUESTION one?"), said("assistant", "ANSWER one."), said("system", "SYSTEM rule")
CALL = said("assistant", None, tool_calls=[called("weather", '{"city": "CALLED Zürich"}')])
BOTH = [called("weather", '{"city": "CALLED Paris"}'), called("weather", '{"city": "CALLED Rome"}', 2)]
NEXT = said("user", "QUESTION two?")
PARTS = [{"type": "text", "text": "PART one"}, {"type": "text", "text": "PART two"}]


@dataclass(frozen=True)
class Case:
    """A conversation, and the words that its prompt has to have."""

    messages: list[Message]
    words: tuple[str, ...] = ()
    tools: Any = None
    continued: bool = False


CASES = {
    "one question": Case([USER], ("QUESTION one",)),
    "system": Case([SYSTEM, USER], ("SYSTEM rule", "QUESTION one")),
    "several turns": Case([SYSTEM, USER, ANSWER, NEXT], ("SYSTEM rule", "QUESTION one", "QUESTION two")),
    "non-ASCII": Case([said("user", "Grüße, 世界 <&> 😊")], ("Grüße, 世界 <&> 😊",)),
    "developer": Case([said("developer", "SYSTEM rule"), USER], ("SYSTEM rule",)),
    "system and developer": Case([SYSTEM, said("developer", "BRIEF"), USER], ("SYSTEM rule", "BRIEF")),
    "developer in the middle": Case([USER, ANSWER, said("developer", "BRIEF"), NEXT], ("BRIEF",)),
    "two systems": Case([SYSTEM, said("system", "BRIEF"), USER], ("SYSTEM rule", "BRIEF")),
    "system in the middle": Case([SYSTEM, USER, ANSWER, said("system", "BRIEF"), NEXT], ("SYSTEM rule", "BRIEF")),
    "one part": Case([said("user", PARTS[:1])], ("PART one",)),
    "parts": Case([said("user", PARTS)], ("PART one", "PART two")),
    "parts of a system": Case([said("system", PARTS), USER], ("PART one", "PART two")),
    "parts of an answer": Case([USER, said("assistant", PARTS), NEXT], ("PART one", "PART two")),
    "null fields": Case([USER, said("assistant", "ANSWER one.", tool_calls=None, refusal=None, name=None), NEXT]),
    "no calls": Case([USER, said("assistant", "ANSWER one.", tool_calls=[]), NEXT], ("ANSWER one",)),
    "tools": Case([USER], ("weather", "city"), TOOLS),
    "tools and a system": Case([SYSTEM, USER], ("SYSTEM rule", "weather"), TOOLS),
    "a call": Case([USER, CALL, result("RESULT")], ("weather", "CALLED Zürich", "RESULT"), TOOLS),
    "a call and its answer": Case([USER, CALL, result("RESULT"), ANSWER, NEXT], ("CALLED Zürich", "RESULT"), TOOLS),
    "a question after a result": Case([USER, CALL, result("RESULT"), NEXT], ("CALLED Zürich", "RESULT"), TOOLS),
    "history without tools": Case([USER, CALL, result("RESULT"), ANSWER, NEXT], ("CALLED Zürich", "RESULT")),
    "open history without tools": Case([USER, CALL, result("RESULT")], ("CALLED Zürich", "RESULT")),
    "text beside a call": Case([USER, {**CALL, "content": "BESIDE"}, result("RESULT")],
                               ("BESIDE", "CALLED Zürich", "RESULT"), TOOLS),
    "two calls": Case([USER, said("assistant", "", tool_calls=BOTH), result("ONE"), result("TWO", 2)],
                      ("CALLED Paris", "CALLED Rome", "ONE", "TWO"), TOOLS),
    "arguments as an object": Case([USER, said("assistant", "", tool_calls=[called("weather", {"city": "CALLED"})]),
                                    result("RESULT")], ("CALLED", "RESULT"), TOOLS),
    "empty arguments": Case([USER, said("assistant", "", tool_calls=[called("weather", "")]), result("RESULT")],
                            ("weather", "RESULT"), TOOLS),
    "null arguments": Case([USER, said("assistant", "", tool_calls=[called("weather", "null")]), result("RESULT")],
                           ("weather", "RESULT"), TOOLS),
    "reasoning": Case([USER, said("assistant", "ANSWER one.", reasoning_content="THOUGHT"), NEXT], ("ANSWER one",)),
    "reasoning before a call": Case([USER, {**CALL, "reasoning": "THOUGHT"}, result("RESULT")],
                                    ("CALLED Zürich", "RESULT"), TOOLS),
    "a short beginning": Case([USER, said("assistant", "end")], ("end",), continued=True),
    "a letter": Case([USER, said("assistant", "m")], ("m",), continued=True),
    "a beginning with a line end": Case([USER, said("assistant", "List:\n")], ("List:",), continued=True),
    "a beginning with spaces": Case([USER, said("assistant", " Well,  ")], ("Well,",), continued=True),
    "a beginning in parts": Case([USER, said("assistant", PARTS)], ("PART one", "PART two"), continued=True),
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="print both prompts of what has no reason")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    templates = dict(templates_in(options.folder))
    for name, template in templates.items():
        for case in CASES:
            reason, ours, theirs = compare(template, CASES[case])
            counts[reason] += 1
            if reason != EQUAL:
                print(f"{name}: {case}: {reason}")
            if reason == UNEXPLAINED and options.verbose:
                print(f"--- parlay\n{ours}\n--- transformers\n{theirs}\n---")
    print(f"\n{len(templates)} templates, {len(CASES)} conversations")
    for reason, count in counts.most_common():
        print(f"{count:6} {reason}")
    return 1 if counts[UNEXPLAINED] else 0


def templates_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the templates of a folder by their names."""
    for path in sorted(folder.rglob("*")):
        model = path.parent if path.name in ("tokenizer_config.json", "chat_template.json") else path
        name = str(model.relative_to(folder))
        if path.suffix == ".jinja" and path.name != "chat_template.jinja":
            yield name, path.read_text("utf-8")
        elif model != path or path.suffix == ".gguf" or path.name == "chat_template.jinja":
            try:
                for title, template in read_templates(path.parent if path.suffix != ".gguf" else path).items():
                    yield f"{name} [{title}]", template
            except ParlayError as error:
                print(f"{name}: left out: {error}", file=sys.stderr)


def compare(template: str, case: Case) -> tuple[str, str, str]:
    """Return why the prompts of a case differ, `equal` if they do not, and both of them.

    A difference is explained if transformers makes parlay's prompt of the messages that parlay changed, and if all of
    that is there which the client sent.
    """
    options = ChatOptions(
        tools=case.tools, add_generation_prompt=not case.continued, continue_final_message=case.continued
    )
    given = [plain(message) for message in case.messages]
    # As in apply_chat_template, keys that are null are left out.
    theirs = reference(template, case, [{k: v for k, v in one.items() if v is not None} for one in case.messages])
    changed = conformed(given, case.tools, template, SPECIAL, HERE)
    try:
        ours = render(template, case.messages, SPECIAL, options)
    except RequestError as error:
        return ("the template refuses" if isinstance(theirs, Exception) else UNEXPLAINED), str(error), str(theirs)
    if ours == theirs:
        return (EQUAL if _shows(ours, case) else "the template shows not all"), ours, ours
    reasons = _reasons(case, changed)
    told = isinstance(theirs, str) and _shows(theirs, case)
    if ours != reference(template, case, changed) or not reasons or (told and reasons & NEEDED):
        reasons = {UNEXPLAINED}
    elif not _shows(ours, case):
        reasons = {"the template shows not all"}
    return ", ".join(sorted(reasons)), ours, str(theirs)


def reference(template: str, case: Case, messages: list[Message]) -> str | Exception:
    """Return transformers' prompt, or why there is none."""
    try:
        (text,), _ = render_jinja_template(
            [messages], tools=case.tools, chat_template=template, add_generation_prompt=not case.continued,
            continue_final_message=case.continued, **SPECIAL,
        )  # fmt: skip
    except Exception as error:  # whatever a template raises
        return error
    return str(text)


def _shows(text: str, case: Case) -> bool:
    """Return whether all words are there, as text or escaped in JSON."""
    return all(word in text or json.dumps(word)[1:-1] in text for word in case.words)


def _reasons(case: Case, changed: list[Message]) -> set[str]:
    """Return what differs between the messages of a case and those that its template got."""
    before, after = case.messages, changed
    texts = [str(message["content"]) for message in after]
    roles = [[message["role"] for message in some] for some in (before, after)]
    calls = [[call for message in some for call in message.get("tool_calls") or ()] for some in (before, after)]
    contents = [[type(message["content"]) for message in some] for some in (before, after)]
    found = {
        "developer as system": roles[0].count("developer") > roles[1].count("developer"),
        "tools in the system message": any("You can call functions." in text for text in texts),
        "history in text": bool(calls[0]) and not calls[1],
        "text beside a call in its own message": bool(calls[1]) and len(after) > len(before),
        "one system message": _systems(roles[0]) > roles[1].count("system") > 0,
        "system in the first user turn": _systems(roles[0]) > roles[1].count("system") == 0,
        "arguments as values": [type(_arguments(one)) for one in calls[0]] != [type(_arguments(one)) for one in calls[1]]
        or [_arguments(one) for one in calls[0]] != [_arguments(one) for one in calls[1]],
        "short ids": bool(calls[1]) and [one["id"] for one in calls[0]] != [one["id"] for one in calls[1]],
        "content as parts": contents[1].count(list) > contents[0].count(list),
        "parts as one text": contents[0].count(list) > contents[1].count(list),
        "no content": [m["content"] for m in before if "tool_calls" in m] != [m["content"] for m in after if "tool_calls" in m],
        "no null keys, no empty calls": any(m.get("tool_calls", 0) in (None, []) for m in before),
    }
    return {reason for reason, applies in found.items() if applies}


def _systems(roles: list[str]) -> int:
    return roles.count("system") + roles.count("developer")


def _arguments(call: dict[str, Any]) -> Any:
    return call["function"]["arguments"]


if __name__ == "__main__":
    sys.exit(main())
