"""Structured outputs: which tokens a grammar permits along a path, and which it forces.

The grammars are llguidance's (https://github.com/guidance-ai/llguidance): a derivative-based lexer under an Earley
parser, with masks computed on demand, so that compiling costs little and both can be limited.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from parlay.errors import RequestError
from parlay.sampling.compiling import COMPILING, dead_end, limits, notation, on_a_deep_stack, one_line
from parlay.sampling.processors import Processor
from parlay.text.grammar_tokenizer import GrammarTokenizer
from parlay.types.structured import StructuredOutputsParams

if TYPE_CHECKING:  # most engines never need it
    from llguidance import LLMatcher, LLTokenizer

_KEPT = 64  # compiled grammars
_SPARE = 4  # matchers of each that are made in advance
_MOST_FORCED = 64  # tokens drafted at once because nothing else is permitted


class Grammars:
    """The compiled grammars of one tokenizer; the most recently used are kept."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        """Build nothing before the first grammar.

        Args:
            tokenizer: the tokenizer.
            vocab_size: size of the model's vocabulary; ids beyond the tokenizer's are never permitted.
            ends: end-of-sequence tokens, one of which ends every answer.
        """
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._ends = tuple(sorted(ends))
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str, StructuredOutputsParams], Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, form: StructuredOutputsParams, tenant: str = "") -> "Constraint":
        """Return a constraint that stands at the beginning of an answer.

        Args:
            form: the form.
            tenant: the tenant; compiled grammars are not shared among tenants, to which the time would reveal them.

        Raises:
            RequestError: the form is not supported, out of bounds or malformed, or no text has it.
        """
        return Constraint(self.compile(form, tenant), self._ends)

    def compile(self, form: StructuredOutputsParams, tenant: str = "") -> "Compiled":
        """Return a form whose next answer can begin at once; any thread may ask. See `start`.

        Raises:
            RequestError: the form is not supported, out of bounds or malformed, or no text has it.
        """
        with self._lock:
            compiled = self._compiled.get((tenant, form))
            if compiled is not None:
                self._compiled.move_to_end((tenant, form))
        if compiled is None:
            compiled = Compiled(self._prepared(), form)
            with self._lock:
                self._compiled[tenant, form] = compiled
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
        compiled.prebuild()
        return compiled

    def _prepared(self) -> "LLTokenizer":
        if not self._ends:
            raise RequestError(
                "structured_outputs needs a model with an end-of-sequence token, and this one has none"
            )
        if self._vocabulary is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            try:
                with COMPILING:
                    tokenizer = TokenizerWrapper(GrammarTokenizer(self._tokenizer, self._vocab_size, self._ends[0]))
                    # In two steps, since each holds the interpreter's lock: half a second for a large vocabulary.
                    plain = LLTokenizer(tokenizer, n_vocab=self._vocab_size, eos_token=list(self._ends), slices=[])
                    self._vocabulary = plain.with_slices(LLTokenizer.general_slices())
            except ValueError as error:
                raise RequestError(f"structured_outputs does not support this tokenizer: {error}") from None
        return self._vocabulary


class Compiled:
    """A form in the library's notation, and matchers at the beginning of an answer.

    Copies of a matcher share its lexer: states that one explores cost the others no more steps, and where one runs
    into a limit all of them fail. So a matcher that decides what is emitted is made anew, and whether a request fails
    depends on that request alone; those of drafts are copies, which at worst draft nothing.
    """

    def __init__(self, tokenizer: "LLTokenizer", form: StructuredOutputsParams) -> None:
        """Compile and check.

        Raises:
            RequestError: the form is malformed, holds what is not supported, is out of bounds, or no text has it.
        """
        self._tokenizer, self._what = tokenizer, form.form
        self._text = ""
        self._spare: list[LLMatcher] = []
        self._root: LLMatcher | None = self._made(form)

    def prebuild(self) -> None:
        """Make in advance what `new_matcher` and `draft_matcher` return next."""
        if self._root is None:
            self._root = self._made()
        if len(self._spare) < _SPARE:
            self._spare.append(self._made())

    def new_matcher(self) -> "LLMatcher":
        """Return a matcher that shares nothing with any other."""
        try:
            return self._spare.pop()
        except IndexError:
            return self._made()

    def draft_matcher(self) -> "LLMatcher | None":
        """Return a matcher for drafts, which is shared among them; None while there is none."""
        root = self._root
        return None if root is None else root.deep_copy()

    def replace_draft_matcher(self) -> None:
        """Have drafts of later answers begin with another lexer, since this one is at its limits."""
        self._root = None

    def _made(self, form: StructuredOutputsParams | None = None) -> "LLMatcher":
        """Return a new matcher; the first one makes the notation, and is checked."""
        from llguidance import LLMatcher

        def work() -> tuple[LLMatcher, str]:
            if form is not None:
                self._text = notation(form)
            matcher = LLMatcher(self._tokenizer, self._text, log_level=0, limits=limits())
            return matcher, matcher.get_error() or (dead_end(matcher.deep_copy()) if form is not None else "")

        found, trouble = on_a_deep_stack(work)
        if found is None or found[1]:
            fault = one_line(trouble if found is None else found[1])
            raise RequestError(f"structured_outputs cannot serve this {self._what}: {fault}")
        return found[0]


class Constraint(Processor):
    """One completion's place in its grammar.

    What is emitted is decided by a matcher that only ever follows the emitted tokens, as in plain decoding; drafts
    use another one.
    """

    def __init__(self, compiled: Compiled, ends: Sequence[int]) -> None:
        """Start at the beginning of an answer.

        Args:
            compiled: compiled form of the answer.
            ends: end-of-sequence tokens.
        """
        self._ends = tuple(ends)
        self._emitting = _TrackedMatcher(compiled.new_matcher)
        self._drafting = _TrackedMatcher(compiled.draft_matcher, compiled.replace_draft_matcher)

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Leave the permitted tokens.

        Raises:
            RequestError: what was emitted was not permitted, nothing is permitted that was not forbidden before, or
                continuing is beyond the limits.
        """
        count = len(known) + len(path)
        allowed = self._emitting.allowed(row.shape[0]) if self._emitting.follow(known, path) else None
        if allowed is None:
            raise RequestError(
                f"structured_outputs cannot continue after {count} tokens: {self._emitting.error}",
                param="structured_outputs",
            )
        logits = row.numpy()
        np.copyto(logits, -np.inf, where=~allowed)
        if (logits > -np.inf).any():
            return
        ends = [token for token in self._ends if allowed[token]]
        if not ends or len(ends) < allowed.sum():
            raise RequestError(
                f"structured_outputs and the parameters that forbid tokens leave none after {count} tokens; "
                "loosen one of them",
                param="structured_outputs",
            )
        logits[ends] = 0.0  # a finished answer ends in spite of min_tokens

    def process_draft(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Leave the permitted tokens in a proposer's row; a row beyond the grammar's end stays as it is."""
        if self._drafting.follow(known, path):
            allowed = self._drafting.allowed(row.shape[0])
            if allowed is not None:
                np.copyto(row.numpy(), -np.inf, where=~allowed)

    def permits(self, path: Sequence[int], token: int) -> bool:
        """Whether `token` may follow `path`, the output's first tokens."""
        if not self._drafting.seek(path):
            return False
        if token in self._ends:
            return bool(self._drafting.matcher.is_accepting())
        forced = self._drafting.forced()
        return bool(token == forced[0] if forced else self._drafting.matcher.validate_tokens([token]) == 1)

    def forced(self, path: Sequence[int]) -> list[int]:
        """Return the tokens that follow `path` because each is the only one permitted."""
        if not self._drafting.seek(path):
            return []
        tokens = self._drafting.forced()
        if len(tokens) > _MOST_FORCED:
            return tokens[:_MOST_FORCED]
        if len(self._ends) == 1 and self._drafting.seek([*path, *tokens]) and self._drafting.complete:
            tokens = [*tokens, self._ends[0]]
        return tokens


class _TrackedMatcher:
    """A matcher and the tokens that it has followed."""

    def __init__(self, begin: "Callable[[], LLMatcher | None]", exhausted: Callable[[], None] | None = None) -> None:
        """Start with the matcher that `begin` returns; `exhausted` is called when that cannot continue."""
        self._begin, self._exhausted = begin, exhausted
        self.matcher: Any = begin()
        self._taken: list[int] = []
        self._sure = 0  # of these, how many are tokens that `follow` was given as known
        self._ahead: list[int] = []  # tokens from the beginning to where there is a choice again

    def follow(self, known: Sequence[int], path: Sequence[int]) -> bool:
        """As `seek` for `known` and `path`, where `known` only ever grows: looks only at what is new."""
        if not self._ready():
            return False
        sure = min(self._sure, len(known))
        found = self._move_to(sure, [*known[sure:], *path])
        self._sure = min(len(known), len(self._taken))
        return found

    def seek(self, tokens: Sequence[int]) -> bool:
        """Go to the place after `tokens`; False, somewhere before, if the grammar does not permit them."""
        self._sure = 0
        return self._ready() and self._move_to(0, [*tokens])

    def _ready(self) -> bool:
        """Start again after an error, where that helps; return whether there is a matcher."""
        if self.matcher is not None and self.matcher.is_error():
            if self._exhausted is not None:
                self._exhausted()
            self.matcher = self._begin() if self._exhausted is None else None
            self._taken, self._sure = [], 0
        return self.matcher is not None

    def _move_to(self, sure: int, rest: list[int]) -> bool:
        """Go to the place after the first `sure` tokens that were taken, and the rest."""
        taken = self._taken[sure:]
        common = len(taken)
        if rest[:common] != taken:
            common = next(i for i, t in enumerate(taken) if i == len(rest) or rest[i] != t)
            self.matcher.rollback(len(taken) - common)
            del self._taken[sure + common :]
        new = rest[common:]
        count = self.matcher.try_consume_tokens(new) if new else 0
        self._taken += new[:count]
        return common + count == len(rest) and not self.matcher.is_error()

    def forced(self) -> list[int]:
        """Return the tokens that must come next; for drafts only.

        The library takes long for a long run, so it is not called at every step along the run, only towards the end,
        where the tokens depend on what comes after.
        """
        known = len(self._taken)
        if len(self._ahead) <= known + _MOST_FORCED or self._ahead[:known] != self._taken:
            self._ahead = [*self._taken, *self.matcher.compute_ff_tokens()]
        return self._ahead[known:]

    def allowed(self, vocab_size: int) -> NDArray[np.bool_] | None:
        """Return which tokens may come next, `[vocab]`; None where that cannot be computed."""
        mask = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        if self.matcher.is_error():
            return None
        return np.unpackbits(mask, count=vocab_size, bitorder="little").view(np.bool_)

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self.matcher.is_stopped() and self.matcher.is_accepting() and not self.matcher.is_error())

    @property
    def error(self) -> str:
        return one_line(self.matcher.get_error()) or "a token was emitted that the form does not permit"
