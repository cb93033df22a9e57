"""Where requests go, among several replicas: the policy beside a slow twin, and the link over played replicas."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay import ConfigError, RequestError
from parlay.engine.memory import Memory
from parlay.kv.pool import BlockPool
from parlay.kv.table import BlockTable
from parlay.link.protocol import Abort, Add, Command, EngineReady
from parlay.server.remote.client import total
from parlay.server.remote.replicas import Replicas, check_alike
from parlay.server.remote.routing import ANSWER, BUSIER, PrefixIndex, block_names, choose
from parlay.types.stats import DraftStats, StatsSnapshot

SIZE = 4


def tokens(*blocks: int) -> list[int]:
    """Return a prompt of full blocks, each of one token repeated."""
    return [token for token in blocks for _ in range(SIZE)]


def names(*blocks: int, tenant: str = "") -> list[bytes]:
    return block_names(tokens(*blocks), SIZE, tenant)


# --------------------------------------------------------------------------------------------------------- the names


@pytest.mark.parametrize("tenant", ["", "a"])
def test_blocks_have_the_names_that_caches_give_them(tenant: str) -> None:
    pool = BlockPool(8, SIZE)
    table = BlockTable(pool, tenant)
    prompt = [*tokens(1, 2, 3), 9, 9]
    assert table.grow(len(prompt))
    table.publish(prompt, len(prompt))
    found = block_names(prompt, SIZE, tenant)[1 if tenant else 0 :]
    assert [pool.find(name) for name in found] == table.blocks[:3]


def test_a_name_covers_all_that_comes_before() -> None:
    assert names(1, 2)[0] == names(1, 3)[0]
    assert names(1, 2)[1] != names(3, 2)[1]
    assert not set(names(1, 2, tenant="a")) & set(names(1, 2, tenant="b"))
    assert block_names([1, 2, 3], SIZE, "") == []


def test_of_a_very_long_prompt_the_beginning_decides() -> None:
    long = block_names(list(range(100_000)), SIZE, "")
    assert long == block_names(list(range(50_000)), SIZE, "")
    assert len(long) == 1024


# --------------------------------------------------------------------------------------------------------- the index


class Twin:
    """The index as one would say it: a list of blocks, those used last at its end."""

    def __init__(self, replicas: int, capacity: int) -> None:
        self.used: list[list[bytes]] = [[] for _ in range(replicas)]
        self.capacity = capacity

    def depths(self, blocks: Sequence[bytes]) -> list[int]:
        found = []
        for used in self.used:
            depth = 0
            while depth < len(blocks) and blocks[depth] in used:
                depth += 1
            found.append(depth)
        return found

    def add(self, replica: int, blocks: Sequence[bytes]) -> None:
        kept = [one for one in self.used[replica] if one not in blocks]
        self.used[replica] = (kept + list(blocks)[::-1])[-self.capacity :]

    def forget(self, replica: int) -> None:
        self.used[replica] = []


PROMPTS = st.lists(st.integers(1, 3), max_size=5)


SENT = st.tuples(st.integers(0, 2), PROMPTS, st.sampled_from(["", "a"]))


@given(st.integers(1, 6), st.lists(SENT, max_size=20), PROMPTS)
def test_the_index_is_its_twin(capacity: int, sent: list[tuple[int, list[int], str]], asked: list[int]) -> None:
    index, twin = PrefixIndex(3, capacity), Twin(3, capacity)
    for replica, blocks, tenant in sent:
        if not blocks:
            index.forget(replica)
            twin.forget(replica)
            continue
        index.add(replica, names(*blocks, tenant=tenant))
        twin.add(replica, names(*blocks, tenant=tenant))
        for who in ("", "a"):
            assert index.depths(names(*asked, tenant=who)) == twin.depths(names(*asked, tenant=who))
    assert all(len(one) <= capacity for one in index._sent)


# -------------------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("cached", "loads", "chosen", "expected"),
    [
        ([0, 64], [0, 0], [-1, 5], 1),  # whoever has it
        ([0, 64], [0, 1], [-1, 5], 0),  # though not for a few tokens
        ([0, 2 * ANSWER], [0, 2], [-1, 5], 1),
        ([0, 2 * ANSWER], [0, 3], [-1, 5], 0),
        ([0, 10_000], [3, 3 + BUSIER], [-1, 5], 1),
        ([0, 10_000], [3, 4 + BUSIER], [-1, 5], 0),  # by too much, however long the prefix
        ([0, 10_000], [7, None], [-1, 5], 0),  # it does not serve
        ([0, 0, 0], [2, 1, 1], [-1, 9, 4], 2),  # the turn is whose it was longest ago
        ([0, 0], [0, 0], [-1, -1], 0),
    ],
)
def test_whose_turn_it_is(cached: list[int], loads: list[int | None], chosen: list[int], expected: int) -> None:
    assert choose(cached, loads, chosen) == expected


REPLICAS = st.tuples(st.integers(0, 12).map(lambda n: n * 64), st.none() | st.integers(0, 9), st.integers(-1, 4))


@given(st.lists(REPLICAS, min_size=1, max_size=6).filter(lambda all_: any(load is not None for _, load, _ in all_)))
def test_the_choice_is_its_twin(replicas: list[tuple[int, int | None, int]]) -> None:
    """One replica after the other is left out for a reason, until one is left."""
    cached, loads, chosen = (list(one) for one in zip(*replicas, strict=True))
    left = [i for i, load in enumerate(loads) if load is not None]
    left = [i for i in left if loads[i] - min(loads[j] for j in left) <= BUSIER]
    for better in (
        lambda i: ANSWER * loads[i] - cached[i],  # rows that others' answers take, less those that are saved
        lambda i: -cached[i],
        lambda i: chosen[i],
        lambda i: i,
    ):
        least = min(map(better, left))
        left = [i for i in left if better(i) == least]
    assert left == [choose(cached, loads, chosen)]


# ------------------------------------------------------------------------------------------------- what comes of both


class Traffic:
    """Requests through the policy, as a front sends them."""

    def __init__(self, replicas: int) -> None:
        self.index = PrefixIndex(replicas, 1 << 12)
        self.loads = [0] * replicas
        self.chosen = [-1] * replicas
        self.clock = 0

    def begin(self, prompt: Sequence[int], tenant: str = "") -> int:
        """Return who gets it; it stays open."""
        found = block_names(prompt, SIZE, tenant)
        number = choose([SIZE * depth for depth in self.index.depths(found)], self.loads, self.chosen)
        self.index.add(number, found)
        self.loads[number] += 1
        self.chosen[number], self.clock = self.clock, self.clock + 1
        return number

    def end(self, number: int) -> None:
        self.loads[number] -= 1

    def ask(self, prompt: Sequence[int], tenant: str = "") -> int:
        """Return who got it; it has ended."""
        number = self.begin(prompt, tenant)
        self.end(number)
        return number


def test_conversations_stay_where_they_are_and_new_ones_take_turns() -> None:
    traffic = Traffic(3)
    homes = [traffic.ask(tokens(talk, *range(8))) for talk in range(10, 19)]
    assert homes == [0, 1, 2] * 3
    for turn in range(9, 20):
        assert [traffic.ask(tokens(talk, *range(turn))) for talk in range(10, 19)] == homes


def test_a_prefix_that_everybody_has_is_soon_everywhere() -> None:
    """Its first replica is not the only one that works."""
    traffic, shared = Traffic(2), tokens(*range(300))
    for number in range(40):
        traffic.begin([*shared, *tokens(1000 + number)])
    assert max(traffic.loads) - min(traffic.loads) <= BUSIER
    assert traffic.index.depths(block_names(shared, SIZE, "")) == [300, 300]


def test_a_tenant_meets_its_own_answers_again() -> None:
    """Prompts that begin otherwise each time, as an agent's with another heading; others' have no such claim."""
    traffic = Traffic(2)
    assert len({traffic.ask(tokens(100 + i), "a") for i in range(8)}) == 1
    assert len({traffic.ask(tokens(200 + i), "b") for i in range(8)}) == 1
    assert len({traffic.ask(tokens(300 + i)) for i in range(8)}) == 2
    assert {traffic.begin(tokens(400 + i), "a") for i in range(4)} == {0, 1}, "but none waits for that"


TALK = tuple(range(40))


class Played:
    """A replica that keeps what it is told, until the test ends it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = "ready"
        self.open: dict[int, Any] = {}
        self.commands: list[Command] = []

    @property
    def load(self) -> int:
        return len(self.open)

    def add(self, add: Add, stream: Any) -> None:
        if "logits_processors" in add.params:
            raise RequestError("not through here")
        self.open[add.key] = stream
        self.commands.append(add)

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def leave(self, key: int) -> None:
        self.open.pop(key, None)


class Line:
    """Two replicas, and who got what."""

    def __init__(self) -> None:
        self.replicas = Played(0), Played(1)
        self.link = Replicas(self.replicas, SIZE, lambda key: f"stream {key}")  # type: ignore[arg-type,return-value]
        self.link._index._capacity = 100
        self.key = -1

    def begin(self, prompt: tuple[int, ...], **params: Any) -> int:
        """Return who gets a request; it stays open."""
        self.key += 1
        self.link.send(Add(self.key, prompt, params))
        (number,) = (r.number for r in self.replicas if r.open.get(self.key) == f"stream {self.key}")
        return number

    def ask(self, prompt: tuple[int, ...]) -> int:
        number = self.begin(prompt)
        self.link.leave(self.key)
        return number


def test_whoever_died_has_nothing_any_more() -> None:
    line = Line()
    assert line.ask(TALK) == 0
    line.link.lost(line.replicas[0])  # type: ignore[arg-type]
    assert line.ask(TALK) == 1, "whose turn it is"


def test_only_those_that_are_ready_are_asked() -> None:
    line = Line()
    assert line.ask(TALK) == 0
    line.replicas[0].state = "restarting"
    assert line.link.serving
    assert line.ask(TALK) == 1
    line.replicas[1].state = "restarting"
    assert not line.link.serving


def test_an_abort_goes_to_whoever_has_the_request() -> None:
    line = Line()
    assert [line.begin((i,)) for i in range(2)] == [0, 1]
    line.link.send(Abort(1))
    assert Abort(1) not in line.replicas[0].commands
    assert line.replicas[1].commands[-1] == Abort(1)
    line.link.leave(1)
    assert [replica.load for replica in line.replicas] == [1, 0]


def test_what_cannot_travel_is_nobodys() -> None:
    line = Line()
    with pytest.raises(RequestError):
        line.begin(TALK, logits_processors=[])
    assert line.ask(TALK[::-1]) == 0, "it was nobody's turn"
    assert line.ask(TALK) == 1, "and nobody has it"


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("m-1/float32/avx2/exact", None),
        ("m-2/float32/avx2/exact", "m-2 instead of m-1;"),
        ("m-1/float32/avx512/up-to-floating-point", "avx512 instead of avx2, up-to-floating-point instead of exact;"),
        ("m-1/float32/avx2/exact/block", "m-1/float32/avx2/exact/block instead of m-1/float32/avx2/exact;"),
    ],
)
def test_what_differs_is_said(other: str, difference: str | None) -> None:
    served, found = (
        EngineReady(name, 8, 8, "", (), {}, Memory(0, 0, 0, 0)) for name in ("m-1/float32/avx2/exact", other)
    )
    if difference is None:
        check_alike(served, found, 3)
        return
    with pytest.raises(ConfigError, match=f"replica 3 would give other tokens .* has {difference}"):
        check_alike(served, found, 3)


ONE = StatsSnapshot(
    steps=3,
    forward=0.5,
    undrafted={"unlikely": 2},
    lengths={3: 1},
    methods={"ngram": DraftStats(drafts=1, drafted=5, accepted=3, accepted_per_position=[2, 1])},
    running=1,
    blocks=8,
)
OTHER = StatsSnapshot(
    steps=4,
    forward=0.25,
    undrafted={"unlikely": 1, "no_proposal": 1},
    lengths={1: 2},
    methods={
        "ngram": DraftStats(drafts=2, drafted=6, accepted=4, accepted_per_position=[2, 1, 1]),
        "grammar": DraftStats(drafts=1),
    },
    running=2,
    blocks=8,
)


def test_all_that_is_counted_is_added() -> None:
    assert total([ONE]) is ONE
    assert total([ONE, OTHER]) == StatsSnapshot(
        steps=7,
        forward=0.75,
        undrafted={"unlikely": 3, "no_proposal": 1},
        lengths={3: 1, 1: 2},
        methods={
            "ngram": DraftStats(drafts=3, drafted=11, accepted=7, accepted_per_position=[4, 2, 1]),
            "grammar": DraftStats(drafts=1),
        },
        running=3,
        blocks=16,
    )
    nothing = StatsSnapshot()
    assert total([ONE, nothing, nothing]) == ONE
    assert {f.name for f in fields(StatsSnapshot) if getattr(total([nothing, nothing]), f.name)} == set()
