"""Faults put into the core on purpose must be noticed, or the other tests prove nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from engine.core.memory import paged_block_manager as paged_memory_module
from engine.core.memory.prefix_cache import PrefixCache
from engine.errors import InvariantViolated
from tests.engine.core import test_engine as engine_loop
from tests.engine.core import test_found_outputs as found_outputs
from tests.engine.core import test_long_prompts as long_prompts
from tests.engine.core import test_preempted_groups as preempted_groups
from tests.engine.core import test_resumed_groups as resumed_groups
from tests.engine.core import test_scheduler as scheduler
from tests.engine.core.decoding import test_decoding as decoding
from tests.engine.core.harness.state_machines import BlockPoolMachine
from tests.engine.core.harness.workload import WINDOWS, run_workload
from tests.engine.core.memory import test_paged_block_manager as paged_memory
from tests.engine.core.memory import test_pinned_prefixes as pinned_prefixes
from tests.engine.core.memory import test_swap_space as swap_space
from tests.engine.core.memory.windows import test_grouped_block_manager as windows
from tests.engine.core.scheduling import test_limits as limits
from tests.engine.core.scheduling import test_queue_order as queue_order
from tests.engine.core.scheduling import test_queues as queues
from tests.engine.core.scheduling import test_resumption as resumption
from tests.engine.core.test_properties import NUM_WORKLOADS
from tests.mutation.core import (
    memory_mutants,
    pin_mutants,
    planner_mutants,
    resumption_mutants,
    scheduler_mutants,
    sequence_mutants,
    sharing_mutants,
    window_mutants,
)
from tests.mutation.core.mutants import Mutant
from tests.mutation.mutant import every_sixth

CORE_MUTANTS: list[Mutant] = [
    *memory_mutants.MEMORY_MUTANTS,
    *sequence_mutants.ROW_MUTANTS,
    *memory_mutants.SWAP_MUTANTS,
    *memory_mutants.LIMIT_MUTANTS,
    *sharing_mutants.FORK_MUTANTS,
    *sharing_mutants.CACHE_MUTANTS,
    *pin_mutants.PIN_MUTANTS,
    *sharing_mutants.SWAPPED_MUTANTS,
    *scheduler_mutants.PLAN_MUTANTS,
    *planner_mutants.PLANNER_MUTANTS,
    *sequence_mutants.SEQUENCE_MUTANTS,
    *scheduler_mutants.QUEUE_MUTANTS,
    *scheduler_mutants.ORDER_MUTANTS,
    *scheduler_mutants.RELEASE_MUTANTS,
    *scheduler_mutants.SCHEDULER_MUTANTS,
    *scheduler_mutants.DECODING_MUTANTS,
    *scheduler_mutants.OUTPUT_MUTANTS,
]

NUM_SEEDS = 80
# rules of which workloads see nothing or little: who shares, who goes first, when blocks come back
RULES: list[Callable[[], None]] = [
    paged_memory.test_tenants_share_nothing,
    paged_memory.test_what_siblings_share_leaves_with_their_group,
    *pinned_prefixes.RULES,
    *found_outputs.RULES,
    *long_prompts.RULES,
    swap_space.test_swap_blocks_are_assigned_once_and_freed_once,
    swap_space.test_a_match_ends_at_the_first_key_that_is_missing,
    swap_space.test_groups_take_the_places_of_what_was_least_recently_used,
    swap_space.test_what_a_plan_writes_or_reads_stays_until_its_end,
    swap_space.test_groups_hold_no_more_than_the_pool_has,
    swap_space.test_a_spoiled_block_is_overwritten_once_nobody_holds_it,
    swap_space.test_shared_blocks_are_swapped_once,
    swap_space.test_ended_sequences_need_no_room_to_come_back,
    swap_space.test_one_copy_is_enough_for_two_to_come_back,
    decoding.test_blocks_of_a_beam_that_ends_come_back_at_once,
    scheduler.test_a_request_does_not_enter_in_the_step_that_preempts_it,
    preempted_groups.test_a_beam_rewound_by_a_swap_decodes,
    preempted_groups.test_a_choice_aborted_while_it_is_recomputed_ends_once_its_sibling_can_do_without,
    preempted_groups.test_as_many_as_configured_overtake_a_swapped_group,
    preempted_groups.test_who_holds_only_a_copy_of_a_spoiled_block_is_recomputed,
    queues.test_an_overtaken_group_is_preempted_after_those_that_overtook_it,
    queue_order.test_who_has_had_least_for_its_weight_goes_next,
    queue_order.test_nobody_saves_up_while_nothing_of_it_is_queued,
    queue_order.test_a_request_that_has_begun_keeps_its_place_before_all_new_ones,
    queue_order.test_what_has_waited_too_long_ends_without_being_computed,
    queue_order.test_what_has_begun_does_not_expire,
    limits.test_a_group_with_more_sequences_than_rows_is_refused,
    limits.test_a_prompt_as_long_as_the_context_is_refused,
]
# those that take longer than the first workloads, which notice most
LONG_RULES: list[Callable[[], None]] = [
    preempted_groups.test_a_spoiled_swap_space_costs_prefills_and_no_answer,
    preempted_groups.test_siblings_that_come_back_wait_for_the_head_of_their_prompt,
]
NUM_FIRST_SEEDS = 12
# how a broken core fails; anything else would be a broken mutant
FAILURES = (AssertionError, InvariantViolated, LookupError, ValueError, pytest.fail.Exception)


@pytest.fixture
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Puts the mutant given as parameter in place."""
    with monkeypatch.context() as patch:
        _apply(patch, request.param)
        yield request.param.fault


def _apply(patch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    patch.setattr(mutant.owner, mutant.name, mutant.build())


def _name(mutant: Mutant) -> str:
    return mutant.fault


def _run_everything() -> None:
    for rule in RULES:
        rule()
    for seed in range(NUM_FIRST_SEEDS):
        run_workload(seed)
    for rule in LONG_RULES:
        rule()
    for seed in range(NUM_FIRST_SEEDS, NUM_SEEDS):
        run_workload(seed)


@pytest.mark.parametrize("fault", every_sixth(CORE_MUTANTS, _name), indirect=True)
def test_rules_or_workloads_notice(fault: str) -> None:
    with pytest.raises(FAILURES):
        _run_everything()


def _lose_engines() -> None:
    queues.test_what_another_engine_has_begun_goes_ahead_of_new_groups_the_oldest_first()
    queues.test_who_is_on_probation_goes_ahead_of_who_is_not_and_makes_way_when_it_is_over()
    engine_loop.test_a_crash_under_probation_is_told_from_one_after_it()
    resumption.test_before_the_first_token_siblings_are_still_to_be_forked()
    resumption.test_output_of_beams_that_is_in_the_cache_is_no_part_of_the_prompt()
    resumed_groups.test_a_request_on_probation_waits_for_every_plan_of_others()
    resumed_groups.run_losses(120)


@pytest.mark.parametrize(
    "fault", every_sixth(resumption_mutants.RESUMPTION_MUTANTS, _name), indirect=True
)
def test_losses_of_engines_notice(fault: str) -> None:
    with pytest.raises(FAILURES):
        _lose_engines()


def _run_windows() -> None:
    for rule in windows.RULES:
        rule()
    for seed in range(60):
        run_workload(seed, windows=WINDOWS[seed % len(WINDOWS)])


@pytest.mark.parametrize("fault", every_sixth(window_mutants.WINDOW_MUTANTS, _name), indirect=True)
def test_workloads_of_window_models_notice(fault: str) -> None:
    with pytest.raises(FAILURES):
        _run_windows()


@pytest.mark.parametrize("fault", every_sixth(memory_mutants.POOL_MUTANTS, _name), indirect=True)
def test_the_model_of_the_pool_notices(fault: str) -> None:
    quick = settings(
        max_examples=1000, deadline=None, database=None, phases=[Phase.generate], print_blob=False
    )
    with pytest.raises(FAILURES):
        run_state_machine_as_test(BlockPoolMachine, settings=quick)


# tests/engine/core runs the same workloads without a fault, and is not slow
@pytest.mark.slow
def test_nothing_is_noticed_without_a_fault() -> None:
    """All else that mutants must meet is a test by itself, the workloads in test_properties.py."""
    assert NUM_SEEDS <= NUM_WORKLOADS
    _run_windows()


class ShortKeys(dict[bytes, int]):
    """Takes keys for equal of which 4 bits are, so that nearly every look-up collides."""

    def get(self, key: bytes, default: Any = None, /) -> Any:
        return super().get(_shortened(key), default)

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, bytes)
        return super().__contains__(_shortened(key))

    def __setitem__(self, key: bytes, block: int) -> None:
        super().__setitem__(_shortened(key), block)

    def __delitem__(self, key: bytes) -> None:
        super().__delitem__(_shortened(key))


def _shortened(key: bytes) -> bytes:
    return bytes([key[0] & 15])


class CollidingCache(PrefixCache):
    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._blocks = ShortKeys()


@pytest.mark.slow
def test_only_the_comparison_of_links_saves_from_collisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_without_pins() -> None:
        # a prefix of which a block collides is pinned only up to there
        for seed in range(NUM_SEEDS // 2):
            run_workload(seed, may_pin=False)

    monkeypatch.setattr(paged_memory_module, "PrefixCache", CollidingCache)
    run_without_pins()
    _apply(monkeypatch, sharing_mutants.BELIEVED_HITS)
    with pytest.raises(FAILURES):
        run_without_pins()
