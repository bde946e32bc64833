"""Random workloads for the core, each fixed by its seed."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from engine.config import SchedulerConfig
from engine.core.scheduling.preemption import FixedPreemption, Preemption
from engine.core.sequence_group import SequenceGroup
from engine.types import Capacity, SamplingParams, StepPlan
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.expectations import FlakyModel, Setting
from tests.fakes.symbolic_executor import SymbolicModel

SWAP, RECOMPUTE = FixedPreemption(swap=True), FixedPreemption(swap=False)


class MixedPreemption:
    """Swaps or recomputes by the toss of a coin."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

    def prefers_swap(self, group: SequenceGroup, num_blocks: int, num_kept: int) -> bool:
        return self._rng.random() < 0.5

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        pass


def run_workload(
    seed: int, *, may_pin: bool = True, windows: tuple[int, ...] = (0,), **options: Any
) -> CheckedEngine:
    """Run one workload to its end, most of them without pinned prefixes.

    Args:
        windows: of groups of layers, for which the pool has as many blocks more.
        options: of the scheduler, beside those that are drawn.

    Raises:
        AssertionError, InvariantViolated: if a promise of the core is broken.
    """
    rng = Random(seed)
    setting, pins = draw_setting(rng), Random(f"pins of {seed}")
    if any(windows):
        may_pin = False
        num_blocks = setting.capacity.num_blocks * len(windows) + 1
        capacity = replace(setting.capacity, num_blocks=num_blocks, windows=windows)
        setting = replace(setting, capacity=capacity)
    drawn = {
        "pinned_prefix_share": pins.choice((0.0, 0.0, 0.0, 0.2, 0.5)) if may_pin else 0.0,
        "prompt_share": Random(f"share of {seed}").choice((1.0, 0.4)),
    }
    config = replace(setting.config, **(drawn | options))
    checked = CheckedEngine(replace(setting, config=config))
    others = [Random(f"{what} {seed}") for what in ("choices", "turns", "spoiled")]
    _Traffic(rng, pins, checked, *others).run()
    checked.check_pins()
    checked.check_rows()
    return checked


def draw_setting(rng: Random) -> Setting:
    """A small engine: pool, rows, swap space, budget, depth and model."""
    block_size = rng.choice((1, 1, 2, 2, 3, 4, 8, 16, 32))
    num_blocks = max(3, rng.randint(12, 80) // block_size)
    capacity = Capacity(
        num_blocks=num_blocks,
        block_size=block_size,
        num_rows=rng.randint(2, 16),
        num_swap_blocks=rng.choice((0, 3, num_blocks, 4 * num_blocks)),
    )
    vocab_size = rng.randint(8, 40)
    config = SchedulerConfig(
        max_num_batched_tokens=rng.choice((1, 3, 7, 16, 64)),
        max_model_len=rng.randint(16, 96),
        eos_token_ids=tuple(rng.sample(range(vocab_size), rng.randint(0, 2))),
    )
    return Setting(
        capacity=capacity,
        config=config,
        model=rng.choice(
            (SymbolicModel(vocab_size), SymbolicModel(vocab_size), FlakyModel(vocab_size, 80))
        ),
        run_ahead=rng.randint(1, 3),
        preemption=draw_preemption(rng),
        prefix_cache=rng.random() < 0.7,
    )


def draw_preemption(rng: Random) -> Preemption:
    """Always one kind, or both."""
    return rng.choice((RECOMPUTE, SWAP, SWAP, MixedPreemption(rng.randint(0, 99))))


def draw_sampling(rng: Random, checked: CheckedEngine, prompt_len: int) -> SamplingParams:
    """One sequence, several, or beams; many outgrow the pool when they meet."""
    capacity = checked.setting.capacity
    kind = rng.choice(("one", "several", "beams"))
    num_sequences = 1 if kind == "one" else rng.randint(1, min(4, capacity.num_rows))
    options: dict[str, object] = {"n": num_sequences}
    if kind == "beams":
        options = {
            "beam_width": num_sequences,
            "n": rng.randint(1, num_sequences),
            "early_stopping": rng.choice((True, False, "never")),
            "length_penalty": rng.choice((0.0, 0.5, 1.0, 2.0)),
        }
    num_tokens = capacity.num_whole_blocks * capacity.block_size
    room = max(1, num_tokens // num_sequences - prompt_len)
    # one in five is at the border of what fits the pool
    at_border = rng.random() < 0.2
    return checked.sampling(
        max(1, room + rng.randint(0, 2) if at_border else rng.randint(room // 4, room)),
        stop_token_ids=tuple(rng.sample(range(40), rng.choice((0, 0, 1, 3)))),
        ignore_eos=rng.random() < 0.6,
        **options,
    )


@dataclass(slots=True)
class _Traffic:
    rng: Random
    pins: Random
    checked: CheckedEngine
    choice_rng: Random
    turn_rng: Random
    spoil_rng: Random

    def run(self) -> None:
        rng, checked = self.rng, self.checked
        num_requests = rng.randint(4, 20)
        arrival_rate = rng.choice((0.2, 1.0, 1.0))
        abort_rate = rng.choice((0.0, 0.0, 0.02, 0.2))
        choice_abort_rate = self.choice_rng.choice((0.0, 0.0, 0.0, 0.2))
        spoil_rate = self.spoil_rng.choice((0.0, 0.0, 0.3))
        num_turns = self.turn_rng.choice((0, 3, 9))
        while num_requests or checked.engine.has_work:
            while num_requests and (arrival_rate == 1.0 or rng.random() < arrival_rate):
                self._add()
                num_requests -= 1
            if rng.random() < abort_rate:
                # ended and unknown ids too
                checked.abort(rng.randint(0, len(checked.requests)))
            if checked.setting.pinned_blocks and self.pins.random() < 0.2:
                self._change_pins()
            if self.choice_rng.random() < choice_abort_rate:
                request_id = self.choice_rng.randint(0, len(checked.requests))
                checked.abort_choice(request_id, self.choice_rng.randint(0, 3))
            if num_turns and self.turn_rng.random() < 0.1:
                num_turns -= 1
                self._take_turn()
            if self.spoil_rng.random() < spoil_rate:
                num_swap_blocks = checked.setting.capacity.num_swap_blocks
                checked.executor.spoiled.add(self.spoil_rng.randint(0, num_swap_blocks))
            checked.step()
        checked.drain()

    def _take_turn(self) -> None:
        """Go on after what an answer has come to, ended or not, as a chat does."""
        rng, checked = self.turn_rng, self.checked
        if not checked.requests:
            return
        request = rng.choice(checked.requests)
        prompt = [*request.prompt, *rng.choice(checked.answers[request.request_id]).tokens]
        prompt += [rng.randrange(40) for _ in range(rng.randint(0, 3))]
        sampling = draw_sampling(rng, checked, len(prompt))
        checked.add(prompt, sampling, salt=request.salt)

    def _change_pins(self) -> None:
        """Names come again, with the same tokens and with others."""
        rng, checked = self.pins, self.checked
        name, salt = rng.choice("ab"), rng.choice((b"", b"other tenant"))
        if rng.random() < 0.3:
            checked.release(name, salt)
            return
        tokens = Random(rng.randint(0, 3))
        size = checked.setting.capacity.block_size
        prompt = [tokens.randrange(40) for _ in range(rng.randint(1, 3 * size))]
        checked.pin(prompt, name, ttl_s=rng.choice((None, 3.0, 20.0)), salt=salt)

    def _add(self) -> None:
        rng = self.rng
        capacity = self.checked.setting.capacity
        num_tokens = capacity.num_whole_blocks * capacity.block_size
        prompt_len = rng.randint(1, max(1, num_tokens // rng.choice((1, 4, 8, 8))))
        # few distinct prompts, so that equal and nested prefixes meet
        tokens = Random(rng.randint(0, 3))
        self.checked.add(
            [tokens.randrange(40) for _ in range(prompt_len)],
            draw_sampling(rng, self.checked, prompt_len),
            salt=rng.choice((b"", b"", b"other tenant")),
        )
