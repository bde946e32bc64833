"""Random workloads for the core, each fixed by its seed."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from engine.config import SchedulerConfig
from engine.core.memory import Memory
from engine.types import Capacity
from tests.core.harness import Harness, NextToken, Setting

MemoryFactory = Callable[[Capacity], Memory]


def run_workload(seed: int, make_memory: MemoryFactory | None = None) -> Harness:
    """Run one workload to its end.

    Args:
        make_memory: policy under test; paged by default.

    Raises:
        AssertionError, InvariantViolated: if a promise of the core is broken.
    """
    rng = Random(seed)
    setting = draw_setting(rng)
    memory = make_memory(setting.capacity) if make_memory else None
    harness = Harness(setting, memory)
    _Traffic(rng, harness).run()
    harness.check_rows()
    return harness


def hashed_token(vocab_size: int, error_every: int = 0) -> NextToken:
    """A model whose next token is a hash of the prefix; one in `error_every` is an error."""

    def next_token(prefix_hash: int) -> int:
        if error_every and (prefix_hash >> 20) % error_every == 0:
            return -1
        return prefix_hash % vocab_size

    return next_token


def draw_setting(rng: Random) -> Setting:
    """A small engine: pool, rows, budget, depth and model."""
    block_size = rng.choice((1, 2, 3, 4, 8, 16, 32))
    capacity = Capacity(
        num_blocks=max(1, rng.randint(16, 120) // block_size),
        block_size=block_size,
        num_rows=rng.randint(1, 8),
    )
    vocab_size = rng.randint(5, 60)
    config = SchedulerConfig(
        max_num_batched_tokens=rng.choice((1, 3, 7, 64)),
        max_model_len=rng.randint(16, 160),
        eos_token_ids=tuple(rng.sample(range(vocab_size), rng.randint(0, 2))),
    )
    return Setting(
        capacity=capacity,
        config=config,
        next_token=hashed_token(vocab_size, rng.choice((0, 0, 50))),
        run_ahead=rng.randint(1, 3),
    )


@dataclass(slots=True)
class _Traffic:
    rng: Random
    harness: Harness

    def run(self) -> None:
        rng, harness = self.rng, self.harness
        num_requests = rng.randint(2, 24)
        arrival_rate = rng.choice((0.1, 0.5, 1.0))
        abort_rate = rng.choice((0.0, 0.0, 0.05, 0.3))
        while num_requests or harness.engine.has_work:
            while num_requests and (arrival_rate == 1.0 or rng.random() < arrival_rate):
                self._add()
                num_requests -= 1
            if rng.random() < abort_rate:
                # ended and unknown ids too
                harness.abort(rng.randint(0, len(harness.requests)))
            harness.step()
        harness.drain()

    def _add(self) -> None:
        rng = self.rng
        num_slots = self.harness.setting.capacity.num_slots
        prompt_len = rng.randint(1, max(1, num_slots // rng.choice((1, 2, 8))))
        if rng.random() < 0.2:
            # at the border of what fits the pool
            max_tokens = max(1, num_slots - prompt_len + rng.randint(0, 2))
        else:
            max_tokens = rng.randint(1, num_slots)
        # few distinct prompts, so that equal and nested prefixes meet
        tokens = Random(rng.randint(0, 3))
        self.harness.add(
            [tokens.randrange(60) for _ in range(prompt_len)],
            max_tokens,
            stop_token_ids=tuple(rng.sample(range(60), rng.choice((0, 0, 1, 5)))),
            ignore_eos=rng.random() < 0.4,
        )
