"""States of sequences that come, run, draft, fail, share and go at random, against what each slot really holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from parlay.kv import recurrent_states as module
from parlay.kv.pool import BlockPool
from parlay.kv.recurrent_states import SequenceStates, StatePool
from parlay.kv.table import BlockTable
from parlay.types.cache import StateCapacity
from parlay.types.plan import StateUse

BLOCKS, SIZE, SLOTS, PLACES = 40, 2, 7, 9


class Life:
    """A request as the naive model sees it."""

    def __init__(self, table: BlockTable, prompt: list[int]) -> None:
        self.table, self.prompt, self.tokens = table, len(prompt), prompt
        self.computed = 0


class Machine(RuleBasedStateMachine):
    lives = Bundle("lives")

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.states = BlockPool(BLOCKS, SIZE), StatePool(StateCapacity(SLOTS, PLACES))
        self.alive: list[Life] = []
        # What each slot and place really holds: the tokens that a state covers, and a node's token.
        self.slots: list[tuple[int, ...]] = [()] * SLOTS
        self.places: list[int] = [-1] * PLACES

    def run(self, life: Life, use: StateUse, known: list[int], nodes: list[int]) -> None:
        """Do what a pass does with the states."""
        taken = [slot for _, slot in use.stores]
        assert len({*taken, use.source}) == len(taken) + 1, "a slot is read and written"
        assert not {*use.accepted} & {*use.places}, "a place is read and written"
        for other in self.alive:
            if other is not life and other.table.states is not None:
                assert not {*taken} & {*other.table.states.held}, "a slot of another request is written"
        state = self.slots[use.source] if use.source >= 0 else ()
        tokens = [*(self.places[place] for place in use.accepted), *known]
        assert [*state, *tokens] == life.tokens[: life.computed + len(known)], "the state is not that of its tokens"
        for count, slot in use.stores:
            self.slots[slot] = (*state, *tokens[:count])
        for place, token in zip(use.places, nodes, strict=True):
            self.places[place] = token

    @rule(target=lives, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def arrive(self, tokens: list[int]) -> Life | None:
        if len(self.alive) == self.states.sequences:
            return None
        life = Life(BlockTable(self.pool, "", SequenceStates(self.states)), list(tokens))
        life.computed = life.table.adopt_prefix(life.tokens)
        self.alive.append(life)
        return life

    @rule(life=lives, count=st.integers(1, 9), nodes=st.lists(st.integers(0, 1), max_size=4), data=st.data())
    def step(self, life: Life | None, count: int, nodes: list[int], data: st.DataObject) -> None:
        """Run some known tokens, and below the last of all of them a draft, of which a part is accepted."""
        if life not in self.alive:
            return
        end = min(life.computed + count, len(life.tokens))
        emits = end == len(life.tokens)
        nodes = nodes[: self.states.places] if emits else []
        if not life.table.grow(end + len(nodes)):
            return
        use = life.table.begin(end, len(nodes), life.prompt, keep=data.draw(st.booleans()))
        self.run(life, use, life.tokens[life.computed : end], nodes)
        if data.draw(st.booleans()):  # the step fails: what it has stored is nobody's
            return
        accepted = data.draw(st.integers(0, len(nodes)))
        life.tokens += [*nodes[:accepted], data.draw(st.integers(0, 1))] if emits else []
        life.computed = end + accepted
        life.table.advance(range(accepted), life.tokens)
        life.table.publish(life.tokens, life.computed)

    @rule(life=lives)
    def preempt(self, life: Life | None) -> None:
        if life in self.alive:
            life.table.release()
            life.computed = life.table.adopt_prefix(life.tokens)

    @rule(life=consumes(lives))
    def leave(self, life: Life | None) -> None:
        if life in self.alive:
            life.table.release()
            self.alive.remove(life)

    @rule()
    def begin_anew(self) -> None:
        for life in self.alive:
            life.table.drop()
            life.computed = 0
        self.pool.reset()
        self.states.reset()

    @invariant()
    def whole(self) -> None:
        self.pool.check(life.table.blocks for life in self.alive)
        self.states.check(life.table.states for life in self.alive if life.table.states is not None)

    @invariant()
    def slots_for_all(self) -> None:
        """Whoever runs finds a slot to store to."""
        idle = sum(len(life.table.states.held) < 2 for life in self.alive if life.table.states is not None)
        assert self.states.slots.available >= idle


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=40, derandomize=True, deadline=None)


def test_checkpoints_are_as_far_apart_as_is_said() -> None:
    states = StatePool(StateCapacity(40, 0))
    table = BlockTable(BlockPool(600, 16), "", SequenceStates(states))
    tokens = list(range(1000))
    table.grow(1000)
    use = table.begin(1000, 0, 1000, keep=True)
    assert [count for count, _ in use.stores] == [1000, 256, 512, 768, 992]
    assert module.EVERY == 256
    table.advance((), tokens)
    table.publish(tokens, 1000)
    other = BlockTable(table._pool, "", SequenceStates(states))
    assert other.adopt_prefix([*tokens[:600], -1]) == 512
