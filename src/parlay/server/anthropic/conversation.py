"""From the messages and tools of Anthropic's protocol to those of chat completions.

Its users' turns have the results of tools among their blocks; there each is a message of its own.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from parlay.errors import shown
from parlay.server.anthropic.fields import MessagesFields
from parlay.server.errors import ApiError
from parlay.server.openai.responses_tools import Functions

Message = dict[str, Any]
_Placed = list[tuple[str, dict[str, Any]]]  # blocks, and where each is in the request

_ROLES = ("user", "assistant", "system")
# What Claude Code writes before everything else: it differs in every request, so that no prefix would be cached.
_BILLING = "x-anthropic-billing-header:"
_MEDIA = ("image", "document", "audio", "video", "container_upload")
_THINKS = {"enabled": True, "disabled": False}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_FORM = "output_config.format is {'type': 'json_schema', 'schema': {...}}"


def chat_body(asked: MessagesFields, functions: Functions) -> dict[str, Any]:
    """Return the body of chat completions that asks for the same, without sampling parameters.

    Args:
        asked: the request.
        functions: what its tools are in chat completions.

    Raises:
        ApiError: a message, tool or option is malformed, or is no text.
    """
    messages = [*_system(asked.system), *_turns(asked.messages)]
    found: dict[str, Any] = {"messages": messages, "stream": asked.stream}
    if asked.model is not None:
        found["model"] = asked.model
    if asked.stop_sequences:
        found["stop"] = asked.stop_sequences
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and not last.get("tool_calls"):
        found["continue_final_message"] = True
    choice = asked.tool_choice or {}
    if functions.tools:
        found["tools"] = functions.tools
        found["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    if choice and (functions.tools or choice.get("type") not in ("auto", "none")):
        found["tool_choice"] = _choice(choice)
    variables = dict(asked.chat_template_kwargs)
    thinks = _THINKS.get((asked.thinking or {}).get("type", ""))
    if thinks is not None:
        variables.setdefault("enable_thinking", thinks)
    if variables:
        found["chat_template_kwargs"] = variables
    output = asked.output_config or {}
    if output.get("effort") is not None:
        found["reasoning_effort"] = output["effort"]
    if output.get("format") is not None:
        found["response_format"] = _form(output["format"])
    return found


def functions_of(given: list[dict[str, Any]]) -> Functions:
    """Return tools as functions; those that Anthropic defines, which have types of their own, are left out.

    Raises:
        ApiError: one has no name.
    """
    made = Functions()
    for place, tool in enumerate(given):
        kind = tool.get("type") or "custom"
        if kind == "function":
            form = "{'name': ..., 'description': ..., 'input_schema': {...}}"
            raise _wrong("tools", f"tools[{place}]: a tool is {form} here, not {shown(tool)}")
        if kind != "custom":
            made.left_out[str(kind)] = None
            continue
        name, schema = tool.get("name"), tool.get("input_schema")
        if not isinstance(name, str) or not isinstance(schema, dict | None):
            raise _wrong("tools", f"tools[{place}]: a tool has a name and an input_schema, not {shown(tool)}")
        described = {"description": tool["description"]} if isinstance(tool.get("description"), str) else {}
        # Templates show the keys in this order.
        function = {"name": name, **described, "parameters": {"type": "object"} if schema is None else schema}
        if tool.get("strict") is True:
            made.strict.add(name)
        made.tools.append({"type": "function", "function": function})
    return made


def _choice(choice: dict[str, Any]) -> str | dict[str, Any]:
    kind = choice.get("type")
    if kind == "tool" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    if kind not in _CHOICES:
        message = f"tool_choice is of type {', '.join(_CHOICES)}, or tool with its name, not {shown(choice)}"
        raise _wrong("tool_choice", message)
    return _CHOICES[kind]


def _form(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise _wrong("output_config", f"{_FORM}, not {shown(form)}")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["schema"]}}


def _system(given: str | list[dict[str, Any]] | None) -> list[Message]:
    if isinstance(given, list):
        texts = [_text(block, f"system[{place}]") for place, block in enumerate(given)]
    else:
        texts = [given or ""]
    # A line of its own, or the whole of a block.
    texts = [text.partition("\n")[2] if text.startswith(_BILLING) else text for text in texts]
    text = "\n\n".join(filter(None, texts))
    return [{"role": "system", "content": text}] if text else []


def _turns(messages: list[dict[str, Any]]) -> Iterator[Message]:
    """Yield what is said, neighbouring messages of one role as one turn."""
    roles = []
    for place, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            raise _wrong("messages", f"messages[{place}]: a role is {', '.join(_ROLES)}, not {shown(role)}")
        roles.append((role, place))
    for role, group in groupby(roles, lambda one: one[0]):
        blocks = [
            block for _, place in group for block in _placed(messages[place].get("content"), f"messages[{place}]")
        ]
        yield from [_assistant(blocks)] if role == "assistant" else _user(role, blocks)


def _placed(content: Any, where: str) -> _Placed:
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    return [(f"{where}.content[{place}]", block) for place, block in enumerate(_blocks(content, where))]


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise _wrong("messages", f"{where}: a content is text or a list of blocks, not {shown(content)}")
    return content


def _assistant(blocks: _Placed) -> Message:
    """Return an assistant's turn: its thoughts, its text, and its calls."""
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in blocks:
        match block.get("type"):
            case "thinking":
                thoughts.append(_string(block, "thinking", at))
            case "tool_use":
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                function = {"name": _string(block, "name", at), "arguments": arguments}
                calls.append({"id": _string(block, "id", at), "type": "function", "function": function})
            case str(kind) if kind == "redacted_thinking" or kind.endswith(("_tool_use", "_tool_result")):
                pass  # what Anthropic's own server has thought, or has run
            case _:
                texts.append(_text(block, at))
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(role: str, blocks: _Placed) -> list[Message]:
    """Return a user's turn: the results of tools, which answer the calls before it, and then what is said."""
    results: list[Message] = []
    texts: list[str] = []
    for at, block in blocks:
        if block.get("type") == "tool_result":
            results.append(
                {"role": "tool", "tool_call_id": _string(block, "tool_use_id", at), "content": _result(block, at)}
            )
        else:
            texts.append(_text(block, at))
    said = [{"type": "text", "text": text} for text in texts]
    if not said:
        return results or [{"role": role, "content": ""}]
    return [*results, {"role": role, "content": said if len(said) > 1 else texts[0]}]


def _result(block: dict[str, Any], where: str) -> str:
    """Return what a tool gave, as text, with a word in place of what is none."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        said = [(_said(part), part.get("type")) for part in _blocks(content, where)]
        text = "\n".join(f"[{kind} left out]" if words is None else words for words, kind in said)
    return f"Error: {text}" if block.get("is_error") is True else text


def _text(block: dict[str, Any], at: str) -> str:
    """Return a block's text.

    Raises:
        ApiError: it is no text.
    """
    param, kind, words = at.partition("[")[0], block.get("type"), _said(block)
    if words is not None:
        return words
    if kind == "text":
        return _string(block, "text", at, param)
    if isinstance(kind, str):
        why = "the model reads text only" if kind in _MEDIA else "such blocks are not supported"
        raise _wrong(param, f"{at}: {why}; leave {kind} out")
    raise _wrong(param, f"{at}: a block has a type such as 'text', not {shown(kind)}")


def _said(block: dict[str, Any]) -> str | None:
    """Return the text of a block, of a document, or of a search's result or of one for tools; None for others."""
    kind, source, said = block.get("type"), block.get("source"), block.get("text")
    if kind == "document" and isinstance(source, dict):
        said = source.get("data") if source.get("type") == "text" else source.get("content")
    elif kind == "search_result":
        said = block.get("content")
    elif kind == "tool_reference":
        said = block.get("tool_name")
    elif kind != "text":
        return None
    if isinstance(said, list):
        said = "\n".join(filter(None, (_said(one) for one in said if isinstance(one, dict))))
    if not isinstance(said, str) or kind == "text":
        return said if isinstance(said, str) else None
    title = block.get("title")
    return f"{title}\n{said}" if isinstance(title, str) and title else said


def _string(block: dict[str, Any], name: str, where: str, param: str = "messages") -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _wrong(param, f"{where}: a {block.get('type')} has a text {name!r}, not {shown(value)}")
    return value


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
