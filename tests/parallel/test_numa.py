"""Ranks beside their memory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.parallel.numa import memory_nodes, place_ranks, place_replicas
from parlay.system import allowed_processors, parse_list

TWO = [frozenset(range(4)), frozenset(range(4, 8))]
ALL = frozenset(range(8))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}), ("5", {5}), ("\n", set()), ("0-0", {0})],
)
def test_lists_of_processors(text: str, expected: set[int]) -> None:
    assert parse_list(text) == expected


def test_nodes_are_read_in_order(tmp_path: Path) -> None:
    for name, text in (("node10", "6-7"), ("node2", "0-5"), ("node3", ""), ("nodes", "9")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    assert memory_nodes(tmp_path) == [frozenset(range(6)), frozenset({6, 7})]
    (tmp_path / "node2" / "cpulist").write_text("some")
    assert memory_nodes(tmp_path) == []
    assert memory_nodes(tmp_path / "absent") == []


def test_ranks_divide_nodes() -> None:
    assert place_ranks(2, ALL, TWO) == TWO
    assert place_ranks(4, ALL, TWO) == [frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})]
    assert place_ranks(3, ALL, TWO) == [frozenset({0, 1}), frozenset({2, 3}), TWO[1]]


def test_nothing_is_divided_where_nothing_is_gained() -> None:
    assert place_ranks(2, ALL, [ALL]) == [ALL, ALL]
    assert place_ranks(2, ALL, []) == [ALL, ALL]
    assert place_ranks(1, ALL, TWO) == [ALL]
    assert place_ranks(2, TWO[0], TWO) == [TWO[0], TWO[0]]  # the user keeps this process on one node


@given(
    st.integers(1, 12),
    st.lists(st.frozensets(st.integers(0, 30), max_size=8), max_size=4),
    st.frozensets(st.integers(0, 30), min_size=1),
)
def test_every_rank_has_processors_that_are_allowed(
    size: int, nodes: list[frozenset[int]], allowed: frozenset[int]
) -> None:
    apart = [node.difference(*nodes[:i]) for i, node in enumerate(nodes)]
    places = place_ranks(size, allowed, apart)
    assert len(places) == size
    for place in places:
        assert place
        assert place <= allowed
        usable = [node & allowed for node in apart if node & allowed]
        assert len(usable) < 2 or size < 2 or any(place <= node for node in usable)


def machine(folder: Path, *lists: str) -> list[frozenset[int]]:
    """Return the memory nodes of a machine whose files say so."""
    for number, text in enumerate(lists):
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / "cpulist").write_text(f"{text}\n")
    return memory_nodes(folder)


def test_replicas_divide_nodes(tmp_path: Path) -> None:
    """Whole ones, as long as there are enough; without memory's own processors they are left out."""
    nodes = machine(tmp_path, "0-1,8-9", "2-3", "4-5", "", "6-7")
    allowed = frozenset(range(10))
    assert place_replicas(2, allowed, nodes) == [frozenset({0, 1, 8, 9, 2, 3}), frozenset({4, 5, 6, 7})]
    assert place_replicas(3, allowed, nodes) == [nodes[0], nodes[1], nodes[2] | nodes[3]]
    assert place_replicas(4, allowed, nodes) == nodes
    assert place_replicas(5, allowed, nodes)[:2] == [frozenset({0, 1}), frozenset({8, 9})]
    assert place_replicas(2, allowed - nodes[0], nodes) == [nodes[1], nodes[2] | nodes[3]]


def test_replicas_of_a_machine_with_one_node_run_anywhere(tmp_path: Path) -> None:
    nodes = machine(tmp_path, "0-7")
    assert place_replicas(2, ALL, nodes) == [frozenset()] * 2
    assert place_replicas(2, ALL, []) == [frozenset()] * 2
    assert place_replicas(1, ALL, TWO) == [frozenset()]
    assert place_replicas(2, TWO[1], TWO) == [frozenset()] * 2  # the user keeps all of them on one node


def test_ranks_of_a_replica_divide_its_nodes() -> None:
    nodes = [frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})]
    _, second = place_replicas(2, ALL, nodes)
    assert place_ranks(2, second, nodes) == nodes[2:]


def test_this_machine() -> None:
    assert allowed_processors()
    assert set().union(*memory_nodes()) >= allowed_processors() or not memory_nodes()
