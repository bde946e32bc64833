"""A scheduler whose plans are answered by hand, for tests of single rules."""

from collections import deque
from typing import Any

from engine.config import SchedulerConfig
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.scheduler import Scheduler
from engine.core.scheduling.policies import make_gate, make_order
from engine.core.scheduling.preemption import FixedPreemption
from engine.core.scheduling.queues import Queues
from engine.types import (
    ORDINARY_TERMS,
    Capacity,
    FinishReason,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepResult,
    Terms,
    int32,
)

TokensByRequest = dict[int, tuple[int, FinishReason]]


class SchedulerDriver:
    """Rows are allocated from 0, so row n belongs to the n-th request until one ends."""

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        num_rows: int = 4,
        budget: int = 64,
        num_swap_blocks: int = 0,
        prefix_cache: bool = False,
        **options: Any,
    ) -> None:
        """Swaps if there is swap space; options are those of the scheduler."""
        capacity = Capacity(
            num_blocks=num_blocks,
            block_size=block_size,
            num_rows=num_rows,
            num_swap_blocks=num_swap_blocks,
        )
        options = {"prompt_share": 1.0} | options
        config = SchedulerConfig(max_num_batched_tokens=budget, max_model_len=1000, **options)
        manager = PagedBlockManager(
            num_blocks, block_size, num_swap_blocks=num_swap_blocks, prefix_cache=prefix_cache
        )
        preemption = FixedPreemption(swap=num_swap_blocks > 0)
        gate, queues = make_gate(config), Queues(make_order(config))
        self.scheduler = Scheduler(config, capacity, manager, preemption, gate, queues)
        self._in_flight: deque[StepPlan] = deque()

    def add(
        self,
        request_id: int,
        prompt_len: int,
        max_tokens: int = 10,
        *,
        terms: Terms = ORDINARY_TERMS,
        **options: Any,
    ) -> None:
        """Queue a request whose prompt is 100, 101, ...; options are those of its sampling."""
        sampling = SamplingParams(max_tokens=max_tokens, **options)
        prompt = int32(list(range(100, 100 + prompt_len)))
        self.scheduler.add(
            Request(request_id=request_id, prompt=prompt, sampling=sampling, terms=terms)
        )

    def schedule(self) -> StepPlan:
        """The next plan, which must exist."""
        plan = self.scheduler.schedule()
        assert plan is not None
        self._in_flight.append(plan)
        return plan

    def update(self, *tokens: int) -> StepOutput:
        """Answer the oldest plan; every sampled row gets token 7 unless tokens are given."""
        plan = self._in_flight.popleft()
        rows = plan.sampled_rows
        result = StepResult(step=plan.step, rows=rows, tokens=int32(tokens or [7] * len(rows)))
        return self.scheduler.update(result, 0.0)

    def step(self, *tokens: int) -> tuple[StepPlan, StepOutput]:
        """One plan and its answer."""
        return self.schedule(), self.update(*tokens)

    def finish_all(self) -> TokensByRequest:
        """Answer everything until no request is left; the last token and finish reason of each."""
        last: TokensByRequest = {}
        while self.scheduler.has_work:
            plan = self.scheduler.schedule()
            if plan is not None:
                self._in_flight.append(plan)
            output = self.update() if self._in_flight else self.scheduler.take_output(0.0)
            last |= tokens_by_request(output)
        return last


def tokens_by_request(output: StepOutput) -> TokensByRequest:
    """Token and finish reason by request."""
    rows = zip(output.request_ids, output.tokens, output.finish_reasons, strict=True)
    return {request_id: (token, FinishReason(reason)) for request_id, token, reason in rows}
