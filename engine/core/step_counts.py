"""Counts what plans and results do, for `StepStats`."""

from dataclasses import replace
from time import perf_counter

from engine.core.scheduling.plan import PlannedStep
from engine.core.scheduling.queues import Queues
from engine.types import MemoryUsage, StepPlan, StepStats, WorkCounts


class StepCounts:
    """Sums since the start, and the scheduler's own seconds since the last output."""

    def __init__(self) -> None:
        self._num_recomputed = self._num_swapped_out = self._num_spoiled = 0
        self._num_cached_tokens = self._num_restored_tokens = 0
        self._work = WorkCounts()
        self._schedule_s = 0.0

    def planned(self, step: PlannedStep, started_s: float) -> None:
        """Count what a step does.

        Args:
            started_s: when the scheduler began with it, by `perf_counter`.
        """
        self._num_recomputed += step.num_recomputed
        self._num_swapped_out += step.num_swapped_out
        self._num_cached_tokens += step.num_cached_tokens
        self._num_restored_tokens += step.num_restored_tokens
        # most steps do nothing else than to decode
        if step.prefilled or _moves_blocks(step.plan):
            self._add(step, step.plan)
        self._schedule_s += perf_counter() - started_s

    def spoiled(self, num_blocks: int, num_groups: int) -> None:
        """Count swap blocks that did not hold what they should, and groups that begin again."""
        self._num_spoiled += num_blocks
        self._num_recomputed += num_groups

    def wasted(self, num_rows: int) -> None:
        """Count tokens that were sampled behind the end of their sequence."""
        if num_rows:
            num_before = self._work.num_wasted_rows
            self._work = replace(self._work, num_wasted_rows=num_before + num_rows)

    def stats(
        self,
        queues: Queues,
        usage: MemoryUsage,
        plan: StepPlan | None,
        *,
        elapsed_s: float,
        now_s: float,
        started_s: float,
    ) -> StepStats:
        """Return the counts after a step.

        Args:
            plan: of the step; None for output that came from none.
            elapsed_s: seconds the workers spent on it.
            now_s: on the clock of `Request.arrival_s`.
            started_s: when the scheduler began with its result, by `perf_counter`.
        """
        schedule_s, self._schedule_s = self._schedule_s, 0.0
        return StepStats(
            usage=usage,
            num_running=len(queues.running),
            num_waiting=len(queues.waiting),
            num_swapped=len(queues.swapped),
            oldest_waiting_s=_age_s(queues.waiting.oldest_arrival_s, now_s),
            oldest_swapped_s=_age_s(
                queues.swapped[0].request.arrival_s if queues.swapped else None, now_s
            ),
            num_recomputed=self._num_recomputed,
            num_swapped_out=self._num_swapped_out,
            num_cached_tokens=self._num_cached_tokens,
            num_restored_tokens=self._num_restored_tokens,
            num_spoiled=self._num_spoiled,
            num_tokens=plan.num_tokens if plan is not None else 0,
            num_decode_rows=len(plan.decode_rows) if plan is not None else 0,
            elapsed_s=elapsed_s,
            work=self._work,
            schedule_s=schedule_s,
            update_s=perf_counter() - started_s,
        )

    def _add(self, step: PlannedStep, plan: StepPlan) -> None:
        before = self._work
        self._work = replace(
            before,
            num_prompt_tokens=before.num_prompt_tokens + step.num_prompt_tokens,
            num_prompt_cached=before.num_prompt_cached + step.num_prompt_cached,
            num_recomputed_tokens=before.num_recomputed_tokens + step.num_recomputed_tokens,
            num_forks=before.num_forks + len(plan.fork_children) + len(plan.sibling_rows),
            num_copied_blocks=before.num_copied_blocks + len(plan.copy_sources),
            num_blocks_swapped_out=before.num_blocks_swapped_out + len(plan.swap_out_sources),
            num_blocks_swapped_in=before.num_blocks_swapped_in + len(plan.swap_in_sources),
        )


def _moves_blocks(plan: StepPlan) -> bool:
    return bool(
        plan.fork_children or plan.copy_sources or plan.swap_out_sources or plan.swap_in_sources
    )


def _age_s(arrival_s: float | None, now_s: float) -> float:
    return 0.0 if arrival_s is None else now_s - arrival_s
