"""A text in another vocabulary's tokens, and drafts back in the target's."""

import random
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import TEXTS, spelling, trained
from word_tokenizers import llama

from parlay.proposers.methods.draft_model.shared_tokens import SharedTokens
from parlay.proposers.methods.draft_model.translation import TRANSLATORS, TranslatedText, Translator
from parlay.text.spelling import Spelling
from parlay.types.draft import ROOT, Draft

NAMES = ("short", "long", "pieces")
PAIRS = [pair for pair in product(NAMES, NAMES) if pair[0] != pair[1]]


@pytest.fixture(scope="module")
def spellings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Spelling]:
    made = {"short": trained(290, TEXTS[1:]), "long": trained(420, TEXTS), "pieces": llama()}
    return {kind: spelling(own, tmp_path_factory.mktemp("spelling") / "own") for kind, own in made.items()}


@pytest.fixture(scope="module")
def shared(spellings: dict[str, Spelling]) -> dict[tuple[str, str], SharedTokens]:
    """The tokens that pairs have in common; the draft model comes first."""
    return {(a, b): SharedTokens(spellings[a], spellings[b]) for a, b in PAIRS}


def size(own: Spelling) -> int:
    return max(*own.bytes, *own.special.values()) + 1


def translator(both: SharedTokens, way: str) -> Translator:
    return TRANSLATORS[way](both, size(both.target), size(both.draft))


def read(translate: Translator, *stretches: Sequence[int]) -> TranslatedText:
    text = translate.begin()
    for tokens in stretches:
        translate.read(text, tokens)
    return text


def data_of(own: Spelling, tokens: Sequence[int]) -> bytes:
    return b"".join(own.bytes.get(token, b"") for token in tokens)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_tokens_in_common_have_the_same_bytes(
    shared: dict[tuple[str, str], SharedTokens], pair: tuple[str, str]
) -> None:
    both = shared[pair]
    texts = {own: other for own, other in both.to_target.items() if own in both.draft.bytes}
    assert len(texts) > 20
    assert all(both.draft.bytes[own] == both.target.bytes[other] for own, other in texts.items())
    assert len(set(both.to_target.values())) == len(both.to_target)
    assert {data for data in both.draft.ids if data in both.target.ids} == {both.draft.bytes[own] for own in texts}
    assert both.share == len(texts) / len(both.draft.ids)


def test_special_tokens_by_name_and_by_what_they_are_for(shared: dict[tuple[str, str], SharedTokens]) -> None:
    """Both of one kind have a token of the same name; that of the other kind ends a text by another name."""
    assert shared["short", "long"].to_target[0] == 0
    draft, target = shared["pieces", "long"].draft, shared["pieces", "long"].target
    assert 2 not in shared["pieces", "long"].to_target
    draft.end, target.end = 2, 0
    try:
        assert SharedTokens(draft, target).to_target[2] == 0
    finally:
        draft.end = target.end = None


@pytest.mark.parametrize("way", TRANSLATORS)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@settings(max_examples=40)
@given(data=st.data())
def test_any_tokens_are_read_byte_by_byte(
    shared: dict[tuple[str, str], SharedTokens], pair: tuple[str, str], way: str, data: st.DataObject
) -> None:
    """In stretches of any length; every token is one of the draft model's."""
    both = shared[pair]
    tokens = data.draw(st.lists(st.integers(0, size(both.target) - 1), max_size=40))
    cut = data.draw(st.integers(0, len(tokens)))
    text = read(translator(both, way), tokens[:cut], tokens[cut:])
    assert data_of(both.draft, text.own) == data_of(both.target, tokens)
    assert text.count == len(tokens)
    assert all(0 <= own < size(both.draft) for own in text.own)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_text_read_in_parts_has_the_tokens_of_the_whole(
    shared: dict[tuple[str, str], SharedTokens], pair: tuple[str, str]
) -> None:
    """However long it is, once it is complete: what was settled on the way is where words begin."""
    both, rng = shared[pair], random.Random(4)
    words = "\n".join(rng.choice([*TEXTS, "the id for Paris"]) for _ in range(30))
    tokens = both.target.spell(words.encode())
    translate = translator(both, "text")
    text = translate.begin()
    at = 0
    while at < len(tokens):
        step = rng.choice([1, 1, 2, 5, 40])
        translate.read(text, tokens[at : at + step])
        at += step
    assert text.own[len(both.draft.frame) :] == both.draft.spell(words.encode())
    assert 0 < len(text.own) - text.settled < 70


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_intersection_reads_shared_tokens_one_by_one(
    shared: dict[tuple[str, str], SharedTokens], pair: tuple[str, str]
) -> None:
    both = shared[pair]
    frame = list(both.draft.frame)
    alike = sorted(both.to_draft)[3:]
    assert read(translator(both, "intersection"), alike).own == frame + [both.to_draft[token] for token in alike]


@pytest.mark.parametrize("way", TRANSLATORS)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@settings(max_examples=40)
@given(data=st.data())
def test_no_draft_leaves_the_target_s_vocabulary(
    shared: dict[tuple[str, str], SharedTokens], pair: tuple[str, str], way: str, data: st.DataObject
) -> None:
    """Trees of any tokens behind any text, in which no node has the same child twice."""
    both = shared[pair]
    translate = translator(both, way)
    text = read(translate, data.draw(st.lists(st.integers(0, size(both.target) - 1), max_size=8)))
    count = data.draw(st.integers(1, 8))
    tokens = data.draw(st.lists(st.sampled_from(translate.ids.tolist()), min_size=count, max_size=count))
    parents = [data.draw(st.integers(ROOT, i - 1)) for i in range(count)]
    given = Draft(tuple(tokens), tuple(parents), ("draft_model",) * count, (0.5,) * count)
    most = data.draw(st.integers(1, 8))
    made = translate.write(text, given, most if way == "text" else count)
    assert all(0 <= token < size(both.target) for token in made.tokens)
    assert all(ROOT <= parent < i for i, parent in enumerate(made.parents))
    if way == "text":
        assert len(made) <= most
        assert len(set(zip(made.parents, made.tokens, strict=True))) == len(made)
        assert all(0 < prob <= 1 for prob in made.probs or ())


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("words", [*TEXTS, "the id for Paris. return x"])
def test_a_right_draft_is_the_target_s_own_tokens(
    shared: dict[tuple[str, str], SharedTokens], pair: tuple[str, str], words: str
) -> None:
    """Wherever the text is cut: what the draft model says behind it becomes what the target says, as it says it."""
    both = shared[pair]
    translate, tokens = translator(both, "text"), both.target.spell(words.encode())
    for cut in range(1, len(tokens)):
        text = read(translate, tokens[:cut])
        rest = both.draft.spell(data_of(both.target, tokens[cut:]))
        own = translate.ids[rest].tolist()
        assert translate.own_of(own) == rest
        made = translate.write(text, Draft.chain(own, "draft_model", [0.9] * len(own)), 1000)
        assert list(made.tokens) == tokens[cut:]
        assert made.is_chain
        # Each of the draft model's tokens counts once.
        product_of = 1.0
        for prob in made.probs or ():
            product_of *= prob
        assert product_of == pytest.approx(0.9 ** len(rest))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_draft_goes_on_within_a_word_that_the_target_has_begun(
    shared: dict[tuple[str, str], SharedTokens], pair: tuple[str, str]
) -> None:
    """The target has spelled its beginning in letters, which no token of its own may cover any more."""
    both = shared[pair]
    translate = translator(both, "text")
    for begun, rest in (
        (b"while t", b"he other"),
        (b"whi", b"le the"),
        (b" ", b"the"),
        ("für größe".encode(), b"re"),
    ):
        text = read(translate, [token for byte in begun for token in both.target.match(bytes([byte]))])
        own = translate.ids[both.draft.spell(rest)].tolist()
        made = translate.write(text, Draft.chain(own, "draft_model"), 100)
        assert data_of(both.target, made.tokens) == rest
    assert any(len(data) > 1 for data in map(both.target.bytes.__getitem__, made.tokens)) or pair[1] == "pieces"


def test_a_special_token_ends_a_draft_of_text(shared: dict[tuple[str, str], SharedTokens]) -> None:
    both = shared["short", "long"]
    translate = translator(both, "text")
    text = read(translate, both.target.spell(b"the quick"))
    own = [*both.draft.spell(b" brown"), 0, *both.draft.spell(b" fox")]
    made = translate.write(text, Draft.chain(translate.ids[own].tolist(), "draft_model"), 100)
    assert list(made.tokens) == [*both.target.spell(b" brown"), 0]
    lacking = translator(shared["pieces", "long"], "text")
    text = read(lacking, both.target.spell(b"the id"))
    draft = lacking.ids[[*shared["pieces", "long"].draft.spell(b" for"), 2]].tolist()
    made = lacking.write(text, Draft.chain(draft, "draft_model"), 100)
    assert data_of(both.target, made.tokens) == b" for"


def test_a_character_that_is_not_complete_is_not_drafted(shared: dict[tuple[str, str], SharedTokens]) -> None:
    both = shared["pieces", "long"]
    translate = translator(both, "text")
    text = read(translate, both.target.spell(b"the "))
    own = both.draft.match("東".encode())
    for count, wanted in ((1, b""), (2, b""), (3, "東".encode())):
        made = translate.write(text, Draft.chain(translate.ids[own[:count]].tolist(), "draft_model"), 100)
        assert data_of(both.target, made.tokens) == wanted


def test_a_prompt_with_a_mark_of_its_own_gets_none_more(tmp_path_factory: pytest.TempPathFactory) -> None:
    one, other = (spelling(llama(), tmp_path_factory.mktemp("spelling") / "own") for _ in range(2))
    both = SharedTokens(one, other)
    for way in TRANSLATORS:
        assert read(translator(both, way), [1, 300]).own == read(translator(both, way), [300]).own
        assert read(translator(both, way), [1, 300]).own[0] == 1
