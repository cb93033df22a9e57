"""Grammars that are compiled beside the engine: whose turn it is, and what becomes of those that fail or leave."""

from threading import Event

import pytest
from serving import wait_for

from parlay import RequestError, SamplingParams
from parlay.link.grammar_compiler import GrammarCompiler
from parlay.link.protocol import Add, Failure


class Compiler:
    """Compiles nothing, in an order that it keeps; its first call waits."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.begun, self.go = Event(), Event()
        self.rings = 0
        self.forms = GrammarCompiler(self.prepare, self.wake)

    def prepare(self, params: SamplingParams, tenant: str) -> None:
        self.order.append(tenant)
        self.begun.set()
        self.go.wait(20)
        if params.max_tokens == 7:
            raise RequestError("no such form")
        if params.max_tokens == 8:
            raise ZeroDivisionError

    def wake(self) -> None:
        self.rings += 1

    def submit(self, tenants: str, **params: int) -> None:
        for key, tenant in enumerate(tenants, start=len(self.forms._wanted)):
            self.forms.submit(Add(key, (1,), params, tenant=tenant))
            if key == 0:
                self.begun.wait(20)


@pytest.mark.parametrize(
    ("tenants", "order"),
    [("xaaaab", "xabaaa"), ("xaaabbc", "xabcaba"), ("xaaa", "xaaa"), ("aaab", "aaba")],
)
def test_tenants_take_turns(tenants: str, order: str) -> None:
    """However many grammars one of them has sent, another's is the next but one."""
    compiler = Compiler()
    compiler.submit(tenants)
    compiler.go.set()
    wait_for(lambda: compiler.rings == len(tenants))
    assert "".join(compiler.order) == order
    found = compiler.forms.take()
    assert sorted(add.key for add, _, _ in found) == list(range(len(tenants)))
    assert all(isinstance(params, SamplingParams) and seconds >= 0 for _, seconds, params in found)
    compiler.forms.close()


def test_one_that_leaves_is_neither_compiled_nor_given() -> None:
    compiler = Compiler()
    compiler.submit("xab")
    compiler.forms.forget(1)
    compiler.forms.forget(99)
    compiler.go.set()
    wait_for(lambda: compiler.rings == 3)
    assert compiler.order == ["x", "b"]
    assert [add.key for add, _, _ in compiler.forms.take()] == [0, 2]
    compiler.forms.close()


@pytest.mark.parametrize(
    ("max_tokens", "words"), [(7, "no such form"), (8, "cannot take this request"), (-1, "max_")]
)
def test_one_that_fails_is_reported(max_tokens: int, words: str) -> None:
    compiler = Compiler()
    compiler.go.set()
    compiler.forms.submit(Add(0, (1,), {"max_tokens": max_tokens}, tenant="a"))
    wait_for(lambda: compiler.rings == 1)
    ((_, _, failure),) = compiler.forms.take()
    assert isinstance(failure, Failure)
    assert words in failure.message
    assert failure.key == 0
    compiler.forms.close()


def test_what_waits_at_the_end_is_dropped() -> None:
    compiler = Compiler()
    compiler.submit("xaaa")
    compiler.go.set()
    compiler.forms.close()
    assert len(compiler.order) <= 4
