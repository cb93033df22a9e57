"""The native count trie against the table of all strings, and both against the reference implementation's answers."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.proposers.suffix_tree import SuffixTree

native = pytest.importorskip("parlay.kernels._native")
FORMS = (native.SuffixTrie, SuffixTree)
GOLDEN = json.loads((Path(__file__).parent.parent / "goldens/suffix/golden.json").read_text())
ALL = 1 << 20


class Pair:
    """One tree in both forms, and everything that happened to it."""

    def __init__(self, depth: int, vocabulary: int) -> None:
        self.depth, self.vocabulary = depth, vocabulary
        self.trie, self.table = native.SuffixTrie(depth), SuffixTree(depth)
        self.texts: dict[tuple[int, int], list[int]] = {}
        self.growing: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []

    def begin(self) -> None:
        self.growing.append((self.trie.begin(), self.table.begin()))
        self.texts[self.growing[-1]] = []

    def append(self, random: Random) -> None:
        pair = random.choice(self.growing)
        other = random.choice(list(self.texts.values()))
        start = random.randrange(len(other) or 1)
        # Half of what is written is a repetition.
        repeated = other[start : start + random.randrange(1, 9)] if random.random() < 0.5 else []
        tokens = repeated or [random.randrange(self.vocabulary) for _ in range(random.randrange(1, 6))]
        self.trie.append(pair[0], tokens)
        self.table.append(pair[1], tokens)
        self.texts[pair] += tokens

    def end(self, random: Random) -> None:
        pair = self.growing.pop(random.randrange(len(self.growing)))
        self.trie.end(pair[0])
        self.table.end(pair[1])
        self.ended.append(pair)

    def remove(self, random: Random) -> None:
        pair, count = random.choice(self.ended), random.randrange(1, 20)
        gone = self.trie.remove(pair[0], count)
        assert gone == self.table.remove(pair[1], count)
        if gone:
            self.ended.remove(pair)
            del self.texts[pair]

    def check(self, random: Random) -> None:
        for string, count in self.table.strings():
            assert self.trie.count(string) == count
        for _ in range(4):
            string = [random.randrange(self.vocabulary) for _ in range(random.randrange(1, self.depth + 1))]
            assert self.trie.count(string) == self.table.count(string)
        most, factor = random.randrange(12), random.choice((0.5, 1.0, 4.0))
        limits = most, factor, random.choice((-1.0, 0.0, 1.0)), random.choice((0.0, 0.1, 0.5))
        for pair in self.growing:
            agree(self.trie.guess(pair[0], *limits), self.table.guess(pair[1], *limits))
            agree(self.trie.branch(pair[0], *limits), self.table.branch(pair[1], *limits))
        text = [random.randrange(self.vocabulary) for _ in range(random.randrange(12))]
        for context in (text, *self.texts.values()):
            agree(self.trie.guess_after(context, *limits), self.table.guess_after(context, *limits))
            agree(self.trie.branch_after(context, *limits), self.table.branch_after(context, *limits))


def agree(one: Any, other: Any) -> None:
    """The same tokens, and to the last bit the same probabilities and score."""
    assert tuple(one) == tuple(other)


def play(seed: int, steps: int) -> None:
    random = Random(seed)
    pair = Pair(random.choice((1, 2, 3, 5, 24)), random.choice((1, 2, 3, 5, 20)))
    empty = pair.trie.bytes
    for _ in range(steps):
        choice = random.random()
        if choice < 0.15 or not pair.growing:
            pair.begin()
        elif choice < 0.65:
            pair.append(random)
        elif choice < 0.75:
            pair.end(random)
        elif pair.ended:
            pair.remove(random)
        pair.check(random)
    for trie, table in (*pair.growing, *pair.ended):
        assert pair.trie.remove(trie, ALL)
        assert pair.table.remove(table, ALL)
    assert not list(pair.table.strings())
    assert pair.trie.bytes == empty


@pytest.mark.parametrize("seed", range(30))
def test_both_forms_agree(seed: int) -> None:
    play(seed, 60)


@pytest.mark.soak
def test_both_forms_agree_for_long() -> None:
    for seed in range(1000, 5000):
        play(seed, 150)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 6))
def test_counts_are_those_of_brute_force(text: list[int], depth: int) -> None:
    strings = {tuple(text[i : i + n]) for n in range(1, depth + 1) for i in range(len(text) - n + 1)}
    for form in FORMS:
        tree = form(depth)
        number = tree.begin()
        tree.append(number, text)
        for string in strings:
            times = sum(tuple(text[i : i + len(string)]) == string for i in range(len(text)))
            assert tree.count(string) == times
        assert tree.count([*text[:depth], 7][-depth:]) == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("latest", "next_token"), [(False, 7), (True, 8)])
def test_a_string_is_looked_up_where_it_first_or_last_went_on(form: Any, latest: bool, next_token: int) -> None:
    tree = form(3, latest)
    number = tree.begin()
    tree.append(number, [1, 2, 7, 1, 2, 8, 5, 2, 9, 1, 2])
    assert tree.lookup(number, 1, 1, 99) == [next_token]
    assert tree.lookup(number, 2, 0, 99) == []
    assert tree.lookup(number, 3, 5, 99) == []  # 9 1 2 is new
    assert tree.lookup(number, 1, 100, 99) == tree.lookup(number, 2, 20, 99)
    assert tree.lookup(number, 2, 100, 99)[-3:] == [9, 1, 2]  # to the end of the text
    tree.end(number)
    tree.remove(number, ALL)
    number = tree.begin()
    tree.append(number, [1, 2])
    assert tree.lookup(number, 1, 1, 99) == []  # nothing stays
    tree.append(number, [1, 2])
    assert tree.lookup(number, 1, 1, 99) == [1]


def test_places_are_those_of_one_sequence() -> None:
    tree = native.SuffixTrie(3)
    number, other = tree.begin(), tree.begin()
    with pytest.raises(ValueError, match="one sequence only"):
        tree.lookup(number, 1, 1, 99)
    for gone in (number, other):
        tree.remove(gone, ALL)
        with pytest.raises(ValueError, match="does not grow"):
            tree.lookup(gone, 1, 1, 99)


@pytest.mark.parametrize("latest", [False, True])
def test_places_take_no_memory(latest: bool) -> None:
    plain, tree = native.SuffixTrie(4), native.SuffixTrie(4, latest)
    for one in (plain, tree):
        one.append(one.begin(), [1, 2, 3, 1, 2, 4, 1, 2])
    assert tree.bytes == plain.bytes


# ------------------------------------------------------------------------------------------------------- goldens


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["note"])
def test_goldens(case: dict[str, Any], form: Any) -> None:
    shared, numbers = form(case["max_tree_depth"]), []
    for cached in case["cached"]:
        numbers.append((cached["id"], write(shared, cached["response"])))
    for gone in case.get("evict", ()):
        number = next(pair for pair in numbers if pair[0] == gone)
        numbers.remove(number)
        shared.remove(number[1], ALL)
    active, kept = case["active"], case["max_cached_requests"]
    own = form(case["max_tree_depth"])
    number = own.begin()
    own.append(number, active["prompt"] + active["response"])
    numbers.append(("", write(shared, active["response"], ended=False)))
    while 0 <= kept < len(numbers):
        shared.remove(numbers.pop(0)[1], ALL)
    limits = [case[key] for key in ("max_spec_tokens", "max_spec_factor", "max_spec_offset", "min_token_prob")]
    # A context that is as long as all there is matches no string, since the whole of it never counts.
    found = best(own.guess(number, *limits), shared.guess_after(case["context"], *limits))
    wanted = case["draft"]
    if case["tie_dependent"]:
        assert found[0] in case["acceptable_token_ids_under_any_tie_break"]
    else:
        assert found[0] == wanted["token_ids"]
        assert found[1] == pytest.approx(wanted["probs"], abs=1e-7)
        assert found[2] == pytest.approx(wanted["score"], abs=1e-6)
        assert not found[0] or found[3] == wanted["match_len"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("session", GOLDEN["sessions"])
def test_golden_sessions(session: dict[str, Any], form: Any) -> None:
    shared, own = form(session["max_tree_depth"]), form(session["max_tree_depth"])
    for cached in session["cached"]:
        write(shared, cached["response"])
    number = write(own, session["prompt"], ended=False)
    growing, done = write(shared, [], ended=False), 0
    limits = [session[key] for key in ("max_spec_tokens", "max_spec_factor", "max_spec_offset", "min_token_prob")]
    for step in session["steps"]:
        new = session["response"][done : step["response_len_before"]]
        done += len(new)
        own.append(number, new)
        shared.append(growing, new)
        text = session["prompt"] + session["response"][:done]
        found = best(own.guess(number, *limits), shared.guess_after(text, *limits))
        assert found[0] == step["draft"]
        assert found[2] == pytest.approx(step["score"], abs=1e-6)


def write(tree: Any, tokens: list[int], *, ended: bool = True) -> int:
    number: int = tree.begin()
    tree.append(number, tokens)
    if ended:
        tree.end(number)
    return number


def best(own: Any, shared: Any) -> Any:
    return shared if shared[2] > own[2] else own
