import logging

import pytest

from engine.runtime.metrics.preemption_log import PERIOD_S, PreemptionLog
from engine.runtime.outputs import idle_stats
from engine.types import Capacity, StepStats

USAGE = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1)).usage


def stats(num_recomputed: int, num_swapped_out: int) -> StepStats:
    return StepStats(
        usage=USAGE, num_recomputed=num_recomputed, num_swapped_out=num_swapped_out, num_running=3
    )


def test_preemptions_are_logged_once_in_a_period_and_none_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = PreemptionLog()
    with caplog.at_level(logging.WARNING):
        for now_s, recomputed, swapped_out in [
            (1.0, 0, 0),
            (2.0, 1, 0),
            (3.0, 2, 1),
            (2.0 + PERIOD_S, 2, 2),
            (3.0 + 2 * PERIOD_S, 2, 2),
        ]:
            log.note(stats(recomputed, swapped_out), now_s)
    assert [record.getMessage() for record in caplog.records] == [
        "preemptions recomputed=1 swapped_out=0 running=3 waiting=0 swapped=0",
        "preemptions recomputed=1 swapped_out=2 running=3 waiting=0 swapped=0",
    ]
