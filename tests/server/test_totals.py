"""Several engines' counters as one."""

from dataclasses import fields

from parlay.server.remote.client import total
from parlay.types.stats import DraftStats, StatsSnapshot

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
    undrafted={"unlikely": 1, "no_guess": 1},
    lengths={1: 2},
    methods={
        "ngram": DraftStats(drafts=2, drafted=6, accepted=4, accepted_per_position=[2, 1, 1]),
        "grammar": DraftStats(drafts=1),
    },
    running=2,
    blocks=8,
)


def test_one_is_itself() -> None:
    assert total([ONE]) is ONE


def test_all_that_is_counted_is_added() -> None:
    assert total([ONE, OTHER]) == StatsSnapshot(
        steps=7,
        forward=0.75,
        undrafted={"unlikely": 3, "no_guess": 1},
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
