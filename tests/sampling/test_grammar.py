"""Constraints: what a grammar permits and forces, and what is refused before anything runs."""

import _thread
import json
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jsonschema import validate
from schemas import random_schema
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from parlay import RequestError, SamplingParams, StructuredOutputsParams
from parlay.checkpoints.find import find_model
from parlay.sampling.grammar import Constraint, Grammars
from parlay.sampling.schema import check_schema
from parlay.text.tokenizer import TextCodec

VOCAB, EOS = 4096, 0


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(find_model("tiny-code"))


@pytest.fixture(scope="module")
def grammars(codec: TextCodec) -> Grammars:
    return Grammars(codec.tokenizer, VOCAB, [EOS])


def allowed(constraint: Constraint, known: list[int], path: list[int]) -> set[int]:
    row = torch.zeros(VOCAB)
    constraint.process(known, path, row)
    assert set(np.unique(row.numpy())) <= {-np.inf, 0.0}
    return set(np.flatnonzero(row.numpy() == 0).tolist())


def write(constraint: Constraint, seed: int, most: int = 200) -> list[int]:
    """Return an answer written at random, the end included if it is reached."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    while len(tokens) < most and EOS not in tokens:
        row = torch.randn(VOCAB, generator=generator)
        constraint.process(tokens[:-2], tokens[-2:], row)
        tokens.append(int(row.argmax()))
    return tokens


FORMS: list[dict[str, Any]] = [
    {"regex": r"[a-c]{2,5}-(x|yz)"},
    {"regex": "^fixed text$"},
    {"choice": ["yes", "no", "yes sir"]},
    {"choice": ['a "quote" \\ and /', "new\nline", "é\u2028\x7f\U0001f600", "$^.*"]},
    {"grammar": 'root ::= item ("," item)*\nitem ::= [0-9]{1,2} | "(" root ")"\n'},
    {"grammar": 'start: item ("," item)*\nitem: /[0-9]{1,2}/ | "(" start ")"\n'},
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"json": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 4}, "disable_any_whitespace": True},
    {"json_object": True, "disable_any_whitespace": True},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_answers_have_the_form(grammars: Grammars, codec: TextCodec, form: dict[str, Any]) -> None:
    ended = 0
    for seed in range(8):
        tokens = write(grammars.start(StructuredOutputsParams(**form)), seed)
        if tokens[-1] != EOS:
            continue
        ended += 1
        text = codec.decode(tokens[:-1])
        if "regex" in form:
            assert re.fullmatch(form["regex"], text)
        elif "choice" in form:
            assert text in form["choice"]
        elif "grammar" in form:
            assert re.fullmatch(r"[0-9,()]+", text)
            assert text.count("(") == text.count(")")
        else:
            value = json.loads(text)
            validate(value, form.get("json", {"type": "object"}))
            if form.get("disable_any_whitespace"):
                assert len(text) == len(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) or "\\" in text
    assert ended > 1 or "json_object" in form


def test_every_choice_can_be_written(grammars: Grammars, codec: TextCodec) -> None:
    options = ["import", "import os", "in", "return x", "return y"]
    found = {codec.decode(write(grammars.start(StructuredOutputsParams(choice=options)), s)[:-1]) for s in range(60)}
    assert found == set(options)


def test_the_mask_is_that_of_comparing_texts(grammars: Grammars, codec: TextCodec) -> None:
    """The slow twin compares each token's text with each option; of forced text, only the tokenizer's own tokens."""
    options = ["import numpy", "import os", "if x:", "in range(10)"]
    texts = {t: codec.token_text(t) for t in range(1, VOCAB)}
    rng = random.Random(1)
    forced = 0
    for _ in range(30):
        constraint = grammars.start(StructuredOutputsParams(choice=options))
        tokens: list[int] = []
        while EOS not in tokens:
            text = codec.decode(tokens)
            twin = {t for t, piece in texts.items() if piece and any(o.startswith(text + piece) for o in options)}
            twin |= {EOS} if text in options else set()
            found = allowed(constraint, tokens, [])
            assert found <= twin
            if len(found) == 1:
                forced += 1
                assert constraint.forced(tokens)[:1] == list(found)
            else:
                assert found == twin
                assert constraint.forced(tokens) == []
            tokens.append(rng.choice(sorted(found)))
    assert forced > 30


def test_a_mask_is_a_matter_of_the_path_alone(grammars: Grammars) -> None:
    """Guesses asked for on the way, and the way taken at once, change nothing."""
    rng = random.Random(2)
    for seed in range(12):
        form = StructuredOutputsParams(json=random_schema(rng))
        tokens = write(grammars.start(form), seed, 40)
        straight, busy = grammars.start(form), grammars.start(form)
        for i in range(len(tokens)):
            for _ in range(3):
                draft = [rng.randrange(VOCAB) for _ in range(rng.randint(0, 3))]
                busy.process_draft(tokens[:i], draft, torch.zeros(VOCAB))
                busy.permits([*tokens[:i], *draft], rng.randrange(VOCAB))
                busy.forced(tokens[: rng.randint(0, i)])
            at_once = allowed(grammars.start(form), tokens[: i // 2], tokens[i // 2 : i])
            assert allowed(straight, tokens[:i], []) == allowed(busy, tokens[:i], []) == at_once


def test_drafts_agree_with_the_mask(grammars: Grammars) -> None:
    rng = random.Random(3)
    singles = 0
    for seed in range(20):
        form = StructuredOutputsParams(json=random_schema(rng), disable_any_whitespace=seed % 2 == 0)
        constraint = grammars.start(form)
        tokens = write(constraint, seed, 40)
        fresh = grammars.start(form)
        for i in range(len(tokens)):
            mask = allowed(fresh, tokens[:i], [])
            row = torch.zeros(VOCAB)
            constraint.process_draft(tokens[: i // 2], tokens[i // 2 : i], row)
            assert set(np.flatnonzero(row.numpy() == 0).tolist()) == mask
            for token in (*rng.sample(range(VOCAB), 20), *rng.sample(sorted(mask), min(5, len(mask))), EOS):
                assert constraint.permits(tokens[:i], token) == (token in mask)
            forced = constraint.forced(tokens[:i])
            assert bool(forced) == (len(mask) == 1)
            singles += len(mask) == 1
            for j, token in enumerate(forced):
                assert allowed(grammars.start(form), tokens[:i], forced[:j]) == {token}
    assert singles > 100


def test_going_back(grammars: Grammars) -> None:
    """An answer that was lost with its step is given again."""
    form = StructuredOutputsParams(json=FORMS[6]["json"])
    constraint = grammars.start(form)
    tokens = write(constraint, 5, 30)
    for length in (20, 3, 12, 0, 25):
        known = tokens[:length]
        assert allowed(constraint, known, []) == allowed(grammars.start(form), known, [])


def test_the_end_comes_whatever_forbids_it(grammars: Grammars, codec: TextCodec) -> None:
    constraint = grammars.start(StructuredOutputsParams(choice=["x"]))
    row = torch.full((VOCAB,), 1.0)
    row[EOS] = -torch.inf
    constraint.process(codec.encode("x"), [], row)
    assert row.argmax() == EOS


def test_nothing_left(grammars: Grammars) -> None:
    constraint = grammars.start(StructuredOutputsParams(choice=["x", "y"]))
    row = torch.full((VOCAB,), -torch.inf)
    with pytest.raises(RequestError, match="leave none after 0 tokens; loosen"):
        constraint.process([], [], row)
    with pytest.raises(RequestError, match="cannot continue after 1 tokens"):
        constraint.process([5], [], torch.zeros(VOCAB))
    # the way back is open
    assert len(allowed(constraint, [], [])) == 2


# ------------------------------------------------------------------------------------------------------- refusals


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("form", "match"),
    [
        ({}, "takes exactly one of json, json_object, regex, choice, grammar; none of them"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice was given"),
        ({"regex": 5}, "regex must be text"),
        ({"regex": ""}, ""),
        ({"choice": "abc"}, "choice must be a list"),
        ({"choice": []}, "choice must be a list"),
        ({"choice": ["a", 3]}, "choice must be strings"),
        ({"choice": ["\ud800"]}, "not valid Unicode"),
        ({"json": "{"}, "json is not a JSON schema"),
        ({"json": "[]"}, "which is an object, not list"),
        ({"json": {"const": {1, 2}}}, "set has no place in JSON"),
        ({"json": {"const": float("nan")}}, "json is not a JSON schema"),
        ({"json": {"const": "x" * 10_000_000}}, r"json has 100000\d\d characters, more than the 131072"),
        ({"json": "[" * 100_000}, "nested too deeply"),
        ({"json": {"const": nested(20_000)}}, "nested too deeply"),
        ({"grammar": "root ::= a\n" * 3000}, "more than 2000 lines"),
        ({"json_object": "yes"}, "must be true or false"),
        ({"regex": "a", "disable_any_whitespace": True}, "applies to JSON only"),
        ({"backend": "x", "regex": "a"}, "unknown key 'backend'"),
        ({"choices": ["a"]}, "unknown key 'choices'.*did you mean 'choice'"),
    ],
    ids=lambda v: str(v)[:40] if not isinstance(v, dict) else "-".join(v) or "nothing",
)
def test_malformed(form: dict[str, Any], match: str) -> None:
    if form == {"regex": ""}:  # the empty answer, which is one
        assert SamplingParams(structured_outputs=form).structured_outputs
        return
    with pytest.raises(RequestError, match=match) as error:
        SamplingParams(structured_outputs=form)
    assert len(str(error.value)) < 400


def test_contradictions() -> None:
    with pytest.raises(RequestError, match="ignore_eos"):
        SamplingParams(structured_outputs={"regex": "a"}, ignore_eos=True)
    with pytest.raises(RequestError, match="must be a mapping"):
        SamplingParams(structured_outputs="json")  # type: ignore[arg-type]


RECURSIVE = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}}, "$ref": "#/$defs/n"}


@pytest.mark.parametrize(
    ("form", "match"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"regex": r"[^\s\S]"}, "no text has this form"),
        ({"regex": "(((((a{50}){50}){50}){50}){50})"}, "too many expressions"),
        ({"grammar": ""}, "root"),
        ({"grammar": "root ::= foo"}, "'foo' not found"),
        ({"grammar": "start: foo"}, "foo"),
        ({"grammar": 'root ::= "a" root'}, "Too many items"),
        ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "too deeply nested"),
        ({"json": nested(100)}, "nested more than 64 levels"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "Unsatisfiable"),
        ({"json": {"enum": []}}, "#/enum has a value that the keyword does not take"),
        ({"json": {"$ref": "#/$defs/gone"}}, "/gone"),
        ({"json": {"$ref": "http://example.org/x"}}, "example"),
        (
            {"json": {"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}},
            "the JSON schema requires itself",
        ),
        ({"json": RECURSIVE}, "the JSON schema requires itself"),
        ({"json": {"type": "strin"}}, "#/type has a value that the keyword does not take"),
        ({"json": {"properties": {f"p{i}": {} for i in range(501)}}}, "501 properties"),
        ({"json": {"type": "object", "minProperties": 2}}, "minProperties"),
        ({"json": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}, "oneOf constraints are not supported$"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_what_cannot_be_kept(grammars: Grammars, form: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=match) as error:
        grammars.start(StructuredOutputsParams(**form))
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def test_words_about_a_schema_are_no_keywords() -> None:
    check_schema({"title": "t", "description": "d", "default": 1, "x-order": 3, "$comment": "c", "examples": [1]})
    # names of properties and values are not keywords either
    check_schema({"properties": {"uniqueItem": {}, "foo": True}, "enum": [{"foo": 1}], "const": {"bar": 2}})


def test_the_compiled_are_kept_within_a_bound(grammars: Grammars) -> None:
    for i in range(80):
        grammars.start(StructuredOutputsParams(choice=[f"option {i}"]))
    assert len(grammars._compiled) == 64


def test_without_an_end_of_sequence(codec: TextCodec) -> None:
    with pytest.raises(RequestError, match="end-of-sequence"):
        Grammars(codec.tokenizer, VOCAB, []).start(StructuredOutputsParams(regex="a"))


def test_a_tokenizer_of_another_kind() -> None:
    words = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(RequestError, match="does not support this tokenizer"):
        Grammars(words, 1, [0]).start(StructuredOutputsParams(regex="a"))


def test_other_threads_run_while_a_grammar_is_compiled(grammars: Grammars) -> None:
    """Compiling this takes a second, in which others stand still for a part only."""
    gaps, over = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not over.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.perf_counter()
    with pytest.raises(RequestError, match="too many expressions"):
        grammars.start(StructuredOutputsParams(regex="((a{999}){999}){999}"))
    took = time.perf_counter() - began
    over.set()
    ticking.join()
    assert max(gaps) < took / 2


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("definition", "ends"),
    [
        (NODE, False),
        (NODE | {"required": []}, True),
        (NODE | {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}, True),
        (NODE | {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#"}]}}}, False),
        (NODE | {"properties": {"next": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}, True),
        (NODE | {"properties": {"next": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}}}, False),
        ({"allOf": [{"$ref": "#/$defs/m"}]}, True),
        ({"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/m"}]}, True),
    ],
)
def test_schemas_that_require_themselves(definition: dict[str, Any], ends: bool) -> None:
    schema = {"$defs": {"n": definition, "m": {"type": "null"}}, "$ref": "#/$defs/n"}
    if ends:
        check_schema(schema)
    else:
        with pytest.raises(RequestError, match="requires itself"):
            check_schema(schema)


@pytest.mark.parametrize("form", [*FORMS, {"regex": "[xy](abcd ){99}[xy](ab){99}"}], ids=str)
def test_what_must_follow_is_the_same_on_the_way_and_from_the_start(grammars: Grammars, form: dict[str, Any]) -> None:
    """A run that was asked for once is remembered; a draft that left it, or a step back, makes no difference."""
    asked = StructuredOutputsParams(**form)
    for seed in range(3):
        tokens = write(grammars.start(asked), seed, 40)
        one = grammars.start(asked)
        places = [*range(len(tokens)), *random.Random(seed).sample(range(len(tokens)), min(8, len(tokens)))]
        for place in places:
            path = tokens[:place]
            other = grammars.start(asked).forced(path)
            assert one.forced(path) == other
            one.permits([*path, *other], random.Random(place).randrange(VOCAB))


def test_a_long_forced_text_is_asked_for_once(grammars: Grammars) -> None:
    constraint = grammars.start(StructuredOutputsParams(regex="(abc){400}x"))
    track, asked = constraint._drafting, 0

    class Counting:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            nonlocal asked
            asked += name == "compute_ff_tokens"
            return getattr(self._inner, name)

    track.matcher = Counting(track.matcher)
    path: list[int] = []
    for _ in range(5):
        run = constraint.forced(path)
        assert len(run) == 64
        path += run[:10]
    assert asked == 1


def test_no_thread_to_compile_in(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine out of threads once gave a bare RuntimeError, and nothing could be compiled after it."""

    def refuse(work: Callable[[], None], arguments: tuple[()]) -> None:
        raise RuntimeError("can't start new thread")

    form = StructuredOutputsParams(regex="no thread [a-z]")
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        with pytest.raises(RequestError, match="no thread can be started; try again later"):
            grammars.start(form)
    assert grammars.start(form).permits([], next(iter(allowed(grammars.start(form), [], []))))
