"""Answers of a certain form behind reasoning, as a grammar permits them."""

from functools import cache

from tokenizers import Tokenizer

from parlay.sampling.grammar import Grammars
from parlay.server.openai.reasoning import MARKS, reasoning_grammar
from parlay.server.openai.response_format import AnswerForm
from parlay.types.structured import StructuredOutputsParams


@cache
def grammars_of(tokenizer: Tokenizer) -> Grammars:
    """Return the grammars of a tokenizer, whose vocabulary takes a while to read."""
    return Grammars(tokenizer, tokenizer.get_vocab_size(), [0])


def permitted_as(parser: str, tokenizer: Tokenizer, made: AnswerForm, text: str) -> bool:
    """Return whether an answer may be this text as a whole, with the reasoning parser of that name."""
    marks = MARKS[parser]
    assert marks is not None
    before = reasoning_grammar(marks, "<|start|>assistant", tokenizer, headed=made.headed)
    form = StructuredOutputsParams.parse({**(made.structured or {}), "prefix_grammar": before})
    constraint, path = grammars_of(tokenizer).start(form), tokenizer.encode(text).ids
    return all(constraint.permits(path[:i], token) for i, token in enumerate([*path, 0]))
