"""Calls and values in Python's notation, which are read without running anything."""

import ast
import json
import re
from typing import Any, ClassVar

_STRING = re.compile(r"""\"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)


def _on_one_line(found: re.Match[str]) -> str:
    """Return a string with escapes in place of line ends, which templates write as they are."""
    return found[0].replace("\r", "\\r").replace("\n", "\\n")


class _Constants(ast.NodeTransformer):
    """JSON's names of constants, which some models write, as Python's."""

    _VALUES: ClassVar = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return a constant for a name that is one."""
        return ast.Constant(self._VALUES[node.id]) if node.id in self._VALUES else node


def python_calls(text: str) -> list[tuple[str, str]]:
    """Return names and arguments of calls in a list, `[f(a=1), g(b="x")]`, or one per line.

    Raises:
        ValueError: something is no call.
    """
    listed: list[ast.expr] = []
    for line in ast.parse(_STRING.sub(_on_one_line, text)).body:
        value = line.value if isinstance(line, ast.Expr) else ast.Constant(None)
        listed += value.elts if isinstance(value, ast.List) else [value]
    calls = []
    for call in listed:
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError(text)
        values = {}
        for word in call.keywords:
            if word.arg is None:
                raise ValueError(text)
            values[word.arg] = ast.literal_eval(_Constants().visit(word.value))
        calls.append((ast.unparse(call.func), json.dumps(values, ensure_ascii=False)))
    return calls


def python_value(text: str) -> Any:
    """Return an object or a list that stands in Python's notation; the text itself if it is neither."""
    try:
        value = ast.literal_eval(_Constants().visit(ast.parse(_STRING.sub(_on_one_line, text.strip()), mode="eval")))
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, dict | list) else text
