"""State machines that hypothesis drives: any order of commands, against a model."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import SchedulerConfig
from engine.core.memory.block_pool import BlockPool
from engine.core.scheduling.preemption import Preemption
from engine.types import Capacity
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.expectations import FlakyModel, Setting
from tests.engine.core.harness.workload import RECOMPUTE, SWAP, MixedPreemption
from tests.fakes.symbolic_executor import SymbolicModel

NUM_BLOCKS = 6
PREEMPTIONS: tuple[Preemption, ...] = (RECOMPUTE, SWAP, MixedPreemption(0))


class BlockPoolMachine(RuleBasedStateMachine):
    """Model: the references that are held, one item each, and the kept blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(NUM_BLOCKS, self.evicted.append)
        self.held: list[int] = []
        self.kept: set[int] = set()
        self.unused_kept: list[int] = []
        self.pinned: list[int] = []

    @precondition(lambda self: len({*self.held, *self.pinned}) < NUM_BLOCKS)
    @rule()
    def allocate(self) -> None:
        taken = {*self.held, *self.pinned, *self.unused_kept}
        is_any_free = len(taken) < NUM_BLOCKS
        block = self.pool.allocate()
        assert 0 <= block < NUM_BLOCKS
        assert block not in self.held
        assert block not in self.pinned, "a pinned block was taken"
        if is_any_free:
            assert block not in self.kept, "a kept block was taken although another was free"
            assert not self.evicted
        else:
            assert block == self.unused_kept.pop(0), "not the least recently used one"
            assert self.evicted.pop() == block
            self.kept.remove(block)
        self.held.append(block)

    @precondition(lambda self: self.held or self.unused_kept or self.pinned)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        known = {*self.held, *self.unused_kept, *self.pinned}
        block = data.draw(st.sampled_from(sorted(known)))
        self.pool.share(block)
        self.held.append(block)
        if block in self.unused_kept:
            self.unused_kept.remove(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.held.remove(block)
        assert self.pool.release(block) == (block not in self.held)
        self._note_unused(block)

    def _note_unused(self, block: int) -> None:
        if block not in self.held and block not in self.pinned and block in self.kept:
            self.unused_kept.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.keep(block)
        self.kept.add(block)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.pin(block)
        self.pinned.append(block)
        if block in self.unused_kept:
            self.unused_kept.remove(block)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.pinned))
        self.pinned.remove(block)
        self.pool.unpin(block)
        self._note_unused(block)

    @invariant()
    def every_reference_counts(self) -> None:
        references, pins = Counter(self.held), Counter(self.pinned)
        for block in range(NUM_BLOCKS):
            assert self.pool.references(block) == references[block]
            assert self.pool.is_free(block) == (block not in {*self.held, *self.pinned})
        assert self.pool.num_free == NUM_BLOCKS - len(references | pins)
        assert self.pool.num_unused_pinned == len(pins.keys() - references.keys())
        assert self.pool.num_unused_kept == len(self.unused_kept)


class EngineMachine(RuleBasedStateMachine):
    """Model: the checked."""

    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 5),
        num_rows=st.integers(1, 6),
        num_swap_blocks=st.sampled_from((0, 2, 40)),
        budget=st.sampled_from((1, 3, 7, 64)),
        data=st.data(),
    )
    def start(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_rows: int,
        num_swap_blocks: int,
        budget: int,
        data: st.DataObject,
    ) -> None:
        capacity = Capacity(
            num_blocks=num_blocks,
            block_size=block_size,
            num_rows=num_rows,
            num_swap_blocks=num_swap_blocks,
        )
        config = SchedulerConfig(
            max_num_batched_tokens=budget,
            max_model_len=24,
            eos_token_ids=(1,),
            prompt_share=1.0,
            pinned_prefix_share=data.draw(st.sampled_from((0.0, 0.3, 0.6))),
        )
        setting = Setting(
            capacity=capacity,
            config=config,
            model=data.draw(st.sampled_from((SymbolicModel(12), FlakyModel(12, 30)))),
            run_ahead=data.draw(st.integers(1, 3)),
            preemption=data.draw(st.sampled_from(PREEMPTIONS)),
            prefix_cache=data.draw(st.booleans()),
        )
        self.checked = CheckedEngine(setting)

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
        max_tokens=st.integers(1, 16),
        stop_token_ids=st.sampled_from(((), (2, 3))),
        ignore_eos=st.booleans(),
        n=st.integers(1, 3),
        beam_width=st.sampled_from((0, 0, 3, 4)),
    )
    def add(
        self,
        *,
        prompt: list[int],
        max_tokens: int,
        stop_token_ids: tuple[int, ...],
        ignore_eos: bool,
        n: int,
        beam_width: int,
    ) -> None:
        sampling = self.checked.sampling(
            max_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
            n=n,
            beam_width=beam_width,
        )
        self.checked.add(prompt, sampling, salt=bytes(n == 1))

    @precondition(lambda self: self.checked.requests)
    @rule(data=st.data(), choice=st.integers(0, 2), max_tokens=st.integers(1, 16))
    def go_on(self, data: st.DataObject, choice: int, max_tokens: int) -> None:
        """Ask what comes after an answer, ended or not."""
        request = data.draw(st.sampled_from(self.checked.requests))
        answers = self.checked.answers[request.request_id]
        prompt = [*request.prompt, *answers[choice % len(answers)].tokens, 0]
        self.checked.add(prompt, self.checked.sampling(max_tokens), salt=request.salt)

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
        name=st.sampled_from("ab"),
        ttl_s=st.sampled_from((None, 1.0, 5.0)),
        salt=st.sampled_from((bytes(0), bytes(1))),
    )
    def pin(self, prompt: list[int], name: str, ttl_s: float | None, salt: bytes) -> None:
        self.checked.pin(prompt, name, ttl_s=ttl_s, salt=salt)

    @rule(name=st.sampled_from("ab"), salt=st.sampled_from((bytes(0), bytes(1))))
    def release(self, name: str, salt: bytes) -> None:
        self.checked.release(name, salt)

    @precondition(lambda self: self.checked.open_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.checked.abort(data.draw(st.sampled_from(self.checked.open_requests)))

    @precondition(lambda self: self.checked.open_requests)
    @rule(data=st.data(), choice=st.integers(0, 3))
    def abort_a_choice(self, data: st.DataObject, choice: int) -> None:
        request_id = data.draw(st.sampled_from(self.checked.open_requests))
        self.checked.abort_choice(request_id, choice)

    @rule(request_id=st.integers(-1, 40))
    def abort_whatever_it_is(self, request_id: int) -> None:
        self.checked.abort(request_id)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.checked.step()

    def teardown(self) -> None:
        if hasattr(self, "checked"):
            self.checked.check_pins()
            self.checked.check_rows()
