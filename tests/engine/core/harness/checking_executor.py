"""A symbolic executor that checks plans as workers do, and knows the request of each row."""

from collections.abc import Callable

from engine.types import StepPlan
from engine.worker.plan_check import PlanLimits, check_plan
from tests.engine.core.harness.expectations import Setting
from tests.fakes.symbolic_executor import SymbolicExecutor

# the seed of a request says which one it is; the seeds of its choices follow it
SEED_STRIDE = 1000


class CheckingExecutor(SymbolicExecutor):
    """Checks that requests are served first come, first served, unless some may overtake.

    Plans are those that a worker takes, too.

    Attributes:
        holders: request id by row, from the plans.
        num_sampled: tokens sampled for requests without beams.
        last_plan: the plan submitted last.
    """

    def __init__(self, setting: Setting, is_open: Callable[[int], bool]) -> None:
        super().__init__(setting.capacity, setting.model, run_ahead=setting.run_ahead)
        self.holders: dict[int, int] = {}
        self.num_plans = 0
        self.num_sampled = 0
        self.last_plan = StepPlan(step=-1)
        self._is_open = is_open
        capacity, most = setting.capacity, 2**31
        self._limits = PlanLimits(
            num_rows=capacity.num_rows,
            num_blocks=capacity.num_blocks,
            num_swap_blocks=capacity.num_swap_blocks,
            max_blocks=most,
            num_positions=most,
            vocab_size=most,
        )
        self._max_overtakes = setting.config.max_overtakes
        self._beam_rows: set[int] = set()

    def submit(self, plan: StepPlan) -> None:
        check_plan(plan, self._limits)
        changed = {*plan.releases, *plan.fork_children}
        rows = (row for row in range(len(self._rows)) if row not in changed)
        held = {block for row in rows for block in self._live_blocks(row)}
        super().submit(plan)
        # other blocks that are copied are unused: the pool may lose them
        gives_way = not held.isdisjoint(self._leaving)
        for row in plan.releases:
            del self.holders[row]
            self._beam_rows.discard(row)
        for admission in plan.admissions:
            self.holders[admission.row] = admission.sampling.seed // SEED_STRIDE
            if admission.sampling.beam_width:
                self._beam_rows.add(admission.row)
        # what a preempted group held is less than what it needs to come back
        assert not (gives_way and plan.admissions), "a plan swaps out and admits"
        # a group whose blocks are spoiled starts again, while later ones go on
        if not self._max_overtakes and not self.num_spoiled:
            self._check_order(plan)
        self.num_plans += 1
        self.num_sampled += len(set(plan.sampled_rows) - self._beam_rows)
        self.last_plan = plan

    def _check_order(self, plan: StepPlan) -> None:
        """No request is computed while an earlier one has no row."""
        computed = (*plan.decode_rows, *plan.prefill_rows, *plan.sibling_rows)
        latest = max((self.holders[row] for row in computed), default=0)
        overtaken = set(range(latest)).difference(self.holders.values())
        assert not any(map(self._is_open, overtaken)), "a later request overtook an earlier one"
