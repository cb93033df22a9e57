"""Chat templates through parlay and through transformers, over conversations that clients send.

python scripts/compare_templates.py FOLDER

Reads every `.jinja` and `.gguf` file, and every model directory's templates. Each difference has a reason, which
docs/serving.md describes; the exit status is 1 if one has none.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from parlay.checkpoints.chat_templates import read_templates
from parlay.errors import ParlayError, RequestError
from parlay.text.adapt import adapted
from parlay.text.chat import IN_PROCESS, ChatOptions, render
from parlay.text.messages import Message, plain

EQUAL, UNEXPLAINED, DESCRIBED = "equal", "UNEXPLAINED", "tools in the system message"
# Changes that are made only where a template loses or refuses what a client sent.
NEEDED = {"history in text", "system in the first user turn", "one system message"}
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}


def called(name: str, arguments: Any, number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": f"call_{number:024}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    }


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
    "empty arguments": Case([USER, said("assistant", "", tool_calls=[called("lookup_all", "")]), result("RESULT")],
                            ("lookup_all", "RESULT"), TOOLS),
    "null arguments": Case([USER, said("assistant", "", tool_calls=[called("lookup_all", "null")]), result("RESULT")],
                           ("lookup_all", "RESULT"), TOOLS),
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
    changed, tools = adapted(given, case.tools, template, SPECIAL, IN_PROCESS)
    try:
        ours = render(template, case.messages, SPECIAL, options)
    except RequestError as error:
        return ("the template refuses" if isinstance(theirs, Exception) else UNEXPLAINED), str(error), str(theirs)
    if ours == theirs:
        return (EQUAL if _shows(ours, case) else "the template shows not all"), ours, ours
    reasons = _reasons(case, changed)
    needless = reasons & NEEDED and not reasons & {DESCRIBED} and isinstance(theirs, str) and _shows(theirs, case)
    if ours != reference(template, replace(case, tools=tools), changed) or not reasons or needless:
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
    roles = [[message["role"] for message in some] for some in (case.messages, changed)]
    lists = [
        [isinstance(message["content"], list) for message in some].count(True) for some in (case.messages, changed)
    ]
    before, after = ([one for m in some for one in m.get("tool_calls") or ()] for some in (case.messages, changed))
    moved = roles[0].count("system") + roles[0].count("developer") > roles[1].count("system")
    found = {
        DESCRIBED: any("You can call functions." in str(message["content"]) for message in changed),
        "developer as system": roles[0].count("developer") > roles[1].count("developer"),
        "one system message": moved and "system" in roles[1],
        "system in the first user turn": moved and "system" not in roles[1],
        "history in text": bool(before) and not after,
        "text beside a call in its own message": bool(after) and len(roles[1]) > len(roles[0]),
        "arguments as an object": _all(before, "arguments") != _all(after, "arguments") and bool(after),
        "short ids": _all(before, "id") != _all(after, "id") and bool(after),
        "names at results": _names(changed) > _names(case.messages) and bool(after),
        "content as parts": lists[1] > lists[0],
        "parts as one text": lists[0] > lists[1],
        "null keys and empty calls left out": any(m.get("tool_calls", 0) in (None, []) for m in case.messages),
    }
    empty = any("tool_calls" in m and not m["content"] for m in case.messages)
    return {reason for reason, applies in found.items() if applies} or ({"null or empty content"} if empty else set())


def _names(messages: list[Message]) -> int:
    return sum("name" in message for message in messages)


def _all(calls: list[dict[str, Any]], name: str) -> list[str]:
    """Return one thing of each call, with its type."""
    return [repr({**call, **call["function"]}[name]) for call in calls]


if __name__ == "__main__":
    sys.exit(main())
