"""State machines that hypothesis drives: any order of commands, against a model."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import SchedulerConfig
from engine.core.block_pool import BlockPool
from engine.core.memory import Admission, PagedMemory
from engine.types import Capacity
from tests.core.harness import Harness, Setting
from tests.core.workload import hashed_token

NUM_BLOCKS = 6


class BlockPoolMachine(RuleBasedStateMachine):
    """Model: the references that are held, one entry each."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.held: list[int] = []

    @precondition(lambda self: self.pool.num_free)
    @rule()
    def allocate(self) -> None:
        block = self.pool.allocate()
        assert 0 <= block < NUM_BLOCKS
        assert block not in self.held
        self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.share(block)
        self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.release(block)
        self.held.remove(block)

    @invariant()
    def every_reference_counts(self) -> None:
        references = Counter(self.held)
        for block in range(NUM_BLOCKS):
            assert self.pool.references(block) == references[block]
        assert self.pool.num_free == NUM_BLOCKS - len(references)


class PagedMemoryMachine(RuleBasedStateMachine):
    """Model: the length of every sequence, and the tables as the workers were told of them."""

    @initialize(block_size=st.integers(1, 5))
    def start(self, block_size: int) -> None:
        self.block_size = block_size
        self.memory = PagedMemory(NUM_BLOCKS, block_size)
        self.lengths: dict[int, int] = {}
        self.told: dict[int, list[int]] = {}

    @rule(sequence_id=st.integers(0, 3), num_tokens=st.integers(1, 12))
    def append(self, sequence_id: int, num_tokens: int) -> None:
        length = self.lengths.get(sequence_id, 0) + num_tokens
        others = sum(self._num_blocks(n) for key, n in self.lengths.items() if key != sequence_id)
        fits = others + self._num_blocks(length) <= NUM_BLOCKS
        assert self.memory.can_append(sequence_id, num_tokens) == fits
        if not fits:
            return
        table = self.told.setdefault(sequence_id, [])
        for index, block in self.memory.append(sequence_id, num_tokens):
            assert index == len(table)
            table.append(block)
        self.lengths[sequence_id] = length

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.lengths)))
        self.memory.free(sequence_id)
        del self.lengths[sequence_id], self.told[sequence_id]

    @rule(num_tokens=st.integers(1, 40), extra=st.integers(0, 12))
    def ask(self, num_tokens: int, extra: int) -> None:
        free = NUM_BLOCKS - sum(map(self._num_blocks, self.lengths.values()))
        answer = self.memory.can_admit(num_tokens, num_tokens + extra)
        if self._num_blocks(num_tokens + extra) > NUM_BLOCKS:
            assert answer is Admission.NEVER
        else:
            fits = self._num_blocks(num_tokens) <= free
            assert answer is (Admission.NOW if fits else Admission.LATER)

    @invariant()
    def tables_are_disjoint_and_just_long_enough(self) -> None:
        for sequence_id, length in self.lengths.items():
            assert self.memory.block_table(sequence_id) == tuple(self.told[sequence_id])
            assert len(self.told[sequence_id]) == self._num_blocks(length)
        blocks = [block for table in self.told.values() for block in table]
        assert len(blocks) == len(set(blocks))

    @invariant()
    def usage_sums_to_the_pool(self) -> None:
        usage = self.memory.usage()
        held = sum(map(self._num_blocks, self.lengths.values()))
        assert usage.total == NUM_BLOCKS * self.block_size
        assert usage.filled == sum(self.lengths.values())
        assert usage.internal == held * self.block_size - usage.filled
        assert usage.free == usage.total - held * self.block_size

    def _num_blocks(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size


class EngineMachine(RuleBasedStateMachine):
    """Model: the harness."""

    @initialize(
        num_blocks=st.integers(1, 8),
        block_size=st.integers(1, 5),
        num_rows=st.integers(1, 4),
        budget=st.sampled_from((1, 3, 7, 64)),
        run_ahead=st.integers(1, 3),
        error_every=st.sampled_from((0, 10)),
    )
    def start(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_rows: int,
        budget: int,
        run_ahead: int,
        error_every: int,
    ) -> None:
        capacity = Capacity(num_blocks=num_blocks, block_size=block_size, num_rows=num_rows)
        config = SchedulerConfig(
            max_num_batched_tokens=budget, max_model_len=24, eos_token_ids=(1,)
        )
        setting = Setting(
            capacity=capacity,
            config=config,
            next_token=hashed_token(12, error_every),
            run_ahead=run_ahead,
        )
        self.harness = Harness(setting)

    @rule(
        prompt=st.lists(st.integers(0, 11), min_size=1, max_size=25),
        max_tokens=st.integers(1, 30),
        stop_token_ids=st.sampled_from(((), (2, 3))),
        ignore_eos=st.booleans(),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        stop_token_ids: tuple[int, ...],
        ignore_eos: bool,
    ) -> None:
        self.harness.add(prompt, max_tokens, stop_token_ids=stop_token_ids, ignore_eos=ignore_eos)

    @precondition(lambda self: self.harness.open_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.harness.abort(data.draw(st.sampled_from(self.harness.open_requests)))

    @rule(request_id=st.integers(-1, 40))
    def abort_whatever_it_is(self, request_id: int) -> None:
        self.harness.abort(request_id)

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()
            self.harness.check_rows()
