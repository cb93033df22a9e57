"""States that are held in one buffer, against a dictionary of tensors."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.proposers.held import HeldStates

PARTS, WIDTH = 2, 3
STEP = st.dictionaries(st.integers(0, 4), st.integers(1, 90), max_size=4)  # rows by request
ACT = st.one_of(STEP, st.integers(0, 4), st.lists(st.integers(0, 4), max_size=3))


@settings(max_examples=60, deadline=None)
@given(st.lists(ACT, max_size=30), st.booleans())
def test_everybody_gets_their_own_states_in_order(acts: list[object], gaps: bool) -> None:
    held, twin, count = HeldStates(), dict[int, torch.Tensor](), 0
    for act in acts:
        if isinstance(act, dict):
            stride = 1 + gaps
            states = torch.arange(count, count + PARTS * stride * sum(act.values()) * WIDTH).view(PARTS, -1, WIDTH)
            count, first, more = count + states.numel(), 0, []
            for request_id, rows in act.items():
                more.append((request_id, range(first, first + stride * rows, stride)))
                before = twin.get(request_id, states[:, :0])
                twin[request_id] = torch.cat([before, states[:, first : first + stride * rows : stride]], dim=1)
                first += stride * rows
            held.add(more, states)
            states.zero_()  # the target's next pass overwrites them
        elif isinstance(act, int):
            found, own = held.take(act), twin.pop(act, None)
            assert found.shape[1] == 0 if own is None else torch.equal(found, own)
        elif isinstance(act, list):
            held.drop(act)
            for request_id in act:
                twin.pop(request_id, None)
        assert held.counts == {request_id: own.shape[1] for request_id, own in twin.items()}
    for request_id, own in twin.items():
        assert torch.equal(held.take(request_id), own)


def test_memory_is_bounded_by_what_is_held() -> None:
    held = HeldStates()
    for step in range(3000):
        held.add([(step % 3, range(4))], torch.zeros(PARTS, 4, WIDTH))
        if step % 7 == 0:
            held.drop([0, 1, 2])
    assert held.rows == 256
