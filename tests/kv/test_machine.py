"""Requests that come, grow, share, shrink and go at random, against a model that keeps plain lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from parlay.kv.pool import BlockPool
from parlay.kv.table import BlockTable

BLOCKS, SIZE = 12, 2
TENANTS = ("", "other")


class Life:
    """A request as the naive model sees it: its tokens, how many are computed, and its table."""

    def __init__(self, table: BlockTable, tenant: str, tokens: list[int]) -> None:
        self.table, self.tenant, self.tokens = table, tenant, tokens
        self.computed = 0


class Machine(RuleBasedStateMachine):
    lives = Bundle("lives")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.alive: list[Life] = []
        # What each block really holds: the tenant and all tokens up to its end, or None for nothing known.
        self.content: list[tuple[str, tuple[int, ...]] | None] = [None] * BLOCKS

    @rule(target=lives, tenant=st.sampled_from(TENANTS), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def arrive(self, tenant: str, tokens: list[int]) -> Life:
        life = Life(BlockTable(self.pool, tenant), tenant, tokens)
        life.computed = life.table.adopt_prefix(tokens)
        assert life.computed < len(tokens)
        assert life.computed == len(life.table.blocks) * SIZE
        for i, block in enumerate(life.table.blocks):
            assert self.content[block] == (tenant, tuple(tokens[: (i + 1) * SIZE])), "a wrong block was shared"
        self.alive.append(life)
        return life

    @rule(life=lives, count=st.integers(1, 5))
    def compute(self, life: Life, count: int) -> None:
        """Compute a few further tokens, writing to the blocks that hold them."""
        end = min(life.computed + count, len(life.tokens))
        available, missing = self.pool.available, -(-end // SIZE) - len(life.table.blocks)
        grown = life.table.grow(end)
        assert grown == (missing <= available)
        if not grown:
            return
        for i in range(life.computed // SIZE, -(-end // SIZE)):
            block = life.table.blocks[i]
            holders = [other for other in self.alive if block in other.table.blocks]
            assert holders == [life], "a block that others read is written to"
            self.content[block] = (life.tenant, tuple(life.tokens[: min(end, (i + 1) * SIZE)]))
        life.computed = end
        life.table.publish(life.tokens, life.computed)

    @rule(life=lives, token=st.integers(0, 1))
    def emit(self, life: Life, token: int) -> None:
        life.tokens.append(token)

    @rule(life=lives, room=st.integers(0, 6))
    def draft_and_trim(self, life: Life, room: int) -> None:
        life.table.grow(life.computed + room)
        life.table.trim(life.computed)

    @rule(life=lives)
    def preempt(self, life: Life) -> None:
        life.table.release()
        life.computed = life.table.adopt_prefix(life.tokens)

    @rule(life=consumes(lives))
    def leave(self, life: Life) -> None:
        life.table.release()
        self.alive.remove(life)

    @invariant()
    def whole(self) -> None:
        self.pool.check(life.table.blocks for life in self.alive)

    @invariant()
    def accounted_for(self) -> None:
        held = {block for life in self.alive for block in life.table.blocks}
        assert self.pool.available == BLOCKS - len(held)

    @invariant()
    def apart(self) -> None:
        blocks = {tenant: {b for x in self.alive if x.tenant == tenant for b in x.table.blocks} for tenant in TENANTS}
        assert not blocks[""] & blocks["other"], "tenants share a block"


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=50, stateful_step_count=40, derandomize=True, deadline=None)
