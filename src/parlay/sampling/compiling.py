"""Structured outputs in llguidance's notation, and its limits; nothing here needs a model."""

import _thread
import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from parlay.errors import RequestError
from parlay.rust_panics import Contained
from parlay.sampling.schema import check_schema
from parlay.types.structured import StructuredOutputsParams

if TYPE_CHECKING:  # most processes never need it
    from llguidance import LLMatcher, LLParserLimits

COMPILING = Contained("its library panics")
_STACK = 1 << 29  # bytes of address space: the compiler recurses along rules and references
_STACK_LOCK = threading.Lock()

T = TypeVar("T")


def notation(form: StructuredOutputsParams) -> str:
    """Return a form in the library's own notation, with what may stand before it.

    Raises:
        RequestError: a schema has constraints that are not enforced, or is out of bounds.
    """
    text = _notation(form)
    if form.prefix_grammar is None:
        return text
    inner = json.loads(text)["grammars"][0] if text.startswith("{") else {"lark_grammar": text}
    outer = {"lark_grammar": f"start: prefix @form\n{form.prefix_grammar}"}
    return json.dumps({"grammars": [outer, {**inner, "name": "form"}]}, ensure_ascii=False)


def _notation(form: StructuredOutputsParams) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if form.json is not None or form.json_object:
        schema = json.loads(str(form.json)) if form.json is not None else {"type": "object"}
        return _json_notation(check_schema(schema), form.space)
    if form.choice is not None:
        return str(LLMatcher.grammar_from_regex("|".join(_literal(option) for option in form.choice)))
    if form.regex is not None:
        return str(LLMatcher.grammar_from_regex(form.regex))
    return str(LLMatcher.grammar_from_lark(any_to_lark(str(form.grammar))))


def _json_notation(schema: dict[str, Any], space: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    text = json.dumps(schema, ensure_ascii=False)  # its numbers may be of any size
    return str(LLMatcher.grammar_from_json_schema(text, overrides=cast(Any, dict(space))))


def fault(schema: dict[str, Any]) -> str:
    """Return why a JSON schema cannot be compiled, whatever the tokenizer; empty if it can."""
    from llguidance import LLMatcher, LLTokenizer

    def work() -> str:
        matcher = LLMatcher(LLTokenizer("byte"), _json_notation(schema, {}), log_level=0, limits=limits())
        return matcher.get_error() or dead_end(matcher)

    found, trouble = on_a_deep_stack(work)
    return one_line(trouble or found or "")


def limits() -> "LLParserLimits":
    """Return the compiler's limits."""
    from llguidance import LLParserLimits

    # Steps of the lexer (about 14 per microsecond) and items of the parser, to begin with and for each token.
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=500_000,
        step_max_items=50_000,
        max_items_in_row=4_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def _literal(text: str) -> str:
    """Return a regular expression of just this text."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def dead_end(matcher: "LLMatcher") -> str:
    """Return why no text matches the grammar, as far as its beginning shows; otherwise an empty text."""
    matcher.compute_bitmask()  # finds what is forced, which takes seconds at worst, while other threads run
    if forced := matcher.compute_ff_tokens():
        matcher.consume_tokens(forced)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return str(matcher.get_error())


def on_a_deep_stack(work: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result of compiling in a thread with much room for recursion, or what went wrong.

    Raises:
        RequestError: the system gives no further thread.
    """
    done = threading.Event()
    result: tuple[T | None, str] = None, ""

    def run() -> None:
        nonlocal result
        try:
            with COMPILING:
                result = work(), ""
        except Exception as error:  # the library raises bare Exception
            result = None, str(error)
        finally:
            done.set()

    # The size is the whole process's, so it is set for no longer than a thread takes to be made: `Thread.start` would
    # wait until it runs.
    with _STACK_LOCK:
        before = threading.stack_size(_STACK)
        try:
            _thread.start_new_thread(run, ())
        except RuntimeError:
            raise RequestError(
                "structured_outputs cannot be compiled: no thread can be started; try again later"
            ) from None
        finally:
            threading.stack_size(before)
    done.wait()
    return result


def one_line(trouble: str) -> str:
    """Return the line of a library's message that states the error, without advice that a request cannot follow."""
    lines = trouble.strip().splitlines() or [""]
    line = next((one for one in lines if one.startswith("error: ")), lines[0])
    line = line.split(". Enable ")[0].split("; try ")[0].split("; consider ")[0]
    known = {"NoExtensionBias": "no text has this form", "NoExtension": "no text has this form"}
    return known.get(line, line)[:300]
