"""Suffix decoding: what is drafted, what is learned from whom, and what is forgotten."""

import ctypes
import subprocess
import sys
from typing import Any

import pytest

from parlay import LLM, ConfigError, SamplingParams
from parlay.config import SpeculativeConfig
from parlay.proposers.methods.suffix import _OBJECTS, Options, Proposer
from parlay.proposers.select import make_proposer
from parlay.types.draft import NO_DRAFT


def proposer(**options: Any) -> Proposer:
    named = {f"suffix_decoding_{name}": value for name, value in options.items()}
    return Proposer(Options(**named), target=None)  # type: ignore[arg-type]


def answer(subject: Proposer, request_id: int, prompt: list[int], response: list[int], tenant: str = "") -> None:
    subject.admit(request_id, prompt, tenant)
    for token in response:
        subject.observe(request_id, [token])
    subject.forget(request_id)


def draft(subject: Proposer, prompt: list[int], tenant: str = "", budget: int = 32) -> tuple[int, ...]:
    """What is guessed after a prompt."""
    subject.admit(-1, prompt, tenant)
    tokens = subject.propose(-1, budget).tokens
    subject.forget(-1)
    return tokens


def test_the_request_itself_repeats() -> None:
    subject = proposer()
    subject.admit(1, [1, 2, 3, 4, 9, 1, 2, 3], "")
    found = subject.propose(1, 32)
    assert found.tokens == (4, 9, 1)  # as many as were matched
    assert found.source == ("suffix",) * 3
    assert subject.propose(1, 2).tokens == (4, 9)
    subject.observe(1, [4, 9])
    assert subject.propose(1, 32).tokens == (1, 2, 3, 4, 9)


def test_probabilities_are_of_each_node_given_its_parent() -> None:
    subject = proposer(max_spec_factor=4.0)
    subject.admit(1, [5, 1, 2, 0, 6, 1, 3, 0, 7, 1, 2, 0, 8, 1], "")
    found = subject.propose(1, 3)
    assert found.tokens == (2, 0, 6)
    # After 1 came 2, 3, 2 and now nobody knows; after 1 2 always 0; after 1 2 0 once 6 and once 8.
    assert found.probs == pytest.approx((2 / 4, 1.0, 1 / 2))


def test_new_text_has_no_draft() -> None:
    subject = proposer()
    subject.admit(1, [1, 2, 3, 4], "")
    assert subject.propose(1, 32) == NO_DRAFT
    subject.admit(2, [1], "")
    assert subject.propose(2, 32) == NO_DRAFT


def test_unlikely_tokens_are_not_drafted() -> None:
    text = [1, 2, 1, 3, 1, 4, 1, 5, 1]
    assert draft(proposer(min_token_prob=0.3), text) == ()
    assert len(draft(proposer(min_token_prob=0.2), text)) == 1


def test_responses_teach_their_tenant_alone() -> None:
    subject = proposer()
    answer(subject, 1, [7], [1, 2, 3, 4, 5, 6], tenant="a")
    assert draft(subject, [1, 2, 3], tenant="a") == (4, 5)  # never the whole context
    assert draft(subject, [9, 1, 2, 3], tenant="a") == (4, 5, 6)
    assert draft(subject, [9, 1, 2, 3], tenant="b") == ()
    assert draft(subject, [9, 1, 2, 3]) == ()


def test_prompts_teach_nobody() -> None:
    subject = proposer()
    answer(subject, 1, [1, 2, 3, 4, 5, 6], [8, 9])
    assert draft(subject, [9, 1, 2, 3]) == ()


def test_running_responses_teach_too() -> None:
    subject = proposer()
    subject.admit(1, [7], "")
    subject.observe(1, [1, 2, 3, 4])
    assert draft(subject, [9, 1, 2]) == (3, 4)


def test_the_oldest_responses_go_first() -> None:
    subject = proposer(max_cached_requests=2)
    for number in range(4):
        start = 10 * number
        answer(subject, number, [99], list(range(start, start + 6)))
    for _ in range(40):  # what goes goes in slices, while others grow
        answer(subject, 9, [99], [77])
    assert draft(subject, [98, 0, 1, 2]) == ()


def test_no_responses_are_remembered_if_none_may_be() -> None:
    subject = proposer(max_cached_requests=0)
    answer(subject, 1, [7], [1, 2, 3, 4, 5, 6])
    assert draft(subject, [9, 1, 2, 3]) == ()


def test_memory_stays_within_its_budget() -> None:
    most = 40_000
    subject = proposer(max_cached_bytes=most)
    largest = 0
    for number in range(200):
        answer(subject, number, [0], [(number * 37 + i * i) % 500 for i in range(60)], tenant=str(number % 3))
        largest = max(largest, subject._past.bytes)
        trees, objects = subject._past._trees.values(), _OBJECTS * subject._past._held.total()
        assert subject._past.bytes == sum(tree.bytes for tree in trees) + objects
    assert most / 2 < subject._past.bytes
    assert largest < most * 1.2  # the newest response, before older ones have made room


@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_room_is_made_however_many_tokens_a_step_has(tokens: int) -> None:
    most, few = 100_000, proposer(max_cached_requests=20)
    small = proposer(max_cached_bytes=most)
    for number in range(300):
        for subject in (few, small):
            subject.admit(number, [0], "")
            response = [(number * 37 + i * i) % 500 for i in range(99)]
            for first in range(0, len(response), tokens):
                subject.observe(number, response[first : first + tokens])
            subject.forget(number)
        assert len(few._past._responses) <= 20 + 3
    assert most / 2 < small._past.bytes < most * 1.2


def test_what_has_hardly_begun_takes_nobodys_place() -> None:
    subject = proposer(max_cached_requests=1)
    answer(subject, 1, [8], [5, 6, 7])
    for number in range(2, 40):
        answer(subject, number, [8], [3] * (number % 2))
    assert draft(subject, [5, 6]) == (7,)
    assert len(subject._past._responses) == 1


def test_a_response_may_be_forgotten_while_it_grows() -> None:
    subject = proposer(max_cached_requests=1)
    subject.admit(1, [7], "")
    subject.observe(1, [1, 2, 3, 4])
    for number in range(2, 9):
        answer(subject, number, [8], [5, 6] * 20)
    subject.observe(1, [1, 2])
    assert subject.propose(1, 32).tokens == (3, 4)  # its own tree has it still
    subject.forget(1)
    subject.forget(1)
    assert not subject._texts


def test_a_tenant_without_responses_takes_no_memory() -> None:
    subject = proposer(max_cached_requests=1)
    for number in range(30):
        answer(subject, number, [0], list(range(20)), tenant=f"tenant {number}")
    assert len(subject._past._trees) <= 2


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("suffix_decoding_max_tree_depth", 1, "at least 2"),
        ("suffix_decoding_max_tree_depth", 5000, "lower it"),
        ("suffix_decoding_max_cached_requests", -1, "at least 0"),
        ("suffix_decoding_max_cached_bytes", -1, "at least 0"),
        ("suffix_decoding_max_spec_factor", float("nan"), "at least 0"),
        ("suffix_decoding_min_token_prob", 1.5, "a probability"),
        ("suffix_decoding_max_depth", 3, "suffix_decoding_max_tree_depth"),
    ],
)
def test_options_are_checked(option: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_proposer(SpeculativeConfig.parse({"method": "suffix", option: value}), target=None)  # type: ignore[arg-type]


def test_a_loop_is_answered_in_long_steps() -> None:
    """The same question again: the second answer is drafted from the first."""
    llm = LLM(speculative_config={"method": "suffix", "lengths": "fixed"}, enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    prompt = "def read_config(path):\n"
    [first] = llm.generate(prompt, params)
    [second] = llm.generate(prompt, params)
    assert second.outputs[0].token_ids == first.outputs[0].token_ids
    assert second.metrics.acceptance_length > max(4.0, first.metrics.acceptance_length)
    assert set(second.outputs[0].sources) <= {"target", "suffix"}


_HEAP = """
import ctypes, random, torch
from parlay.kernels._native import SuffixTrie

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena 1 2 3 mapped 5 6 used free 9".split()]

library, draw, trie = ctypes.CDLL(None), random.Random(0), SuffixTrie(24)
library.mallinfo2.restype = Heap
before = library.mallinfo2()
for _ in range(3000):
    others = [torch.empty(draw.randrange(10_000, 100_000), dtype=torch.uint8) for _ in range(8)]  # as in steps
    number = trie.begin()
    trie.append(number, [draw.randrange(4000) for _ in range(draw.choice([2, 5, 12]))])
    trie.end(number)
    del others
after = library.mallinfo2()
print(after.free - before.free, after.used + after.mapped - before.used - before.mapped, trie.bytes)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc's figures")
def test_what_is_remembered_takes_what_is_counted_and_leaves_no_holes() -> None:
    """Small blocks that stay, scattered among large ones that go, would keep these from being used again."""
    pytest.importorskip("parlay.kernels._native")
    holes, taken, counted = map(int, subprocess.check_output([sys.executable, "-c", _HEAP]).split())
    assert counted > 1 << 20
    assert taken < 1.15 * counted
    assert holes < 4 * counted
