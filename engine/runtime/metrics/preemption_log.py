"""Warns in the log when the KV pool is too small for its load."""

import logging

from engine.types import StepStats

logger = logging.getLogger(__name__)

PERIOD_S = 10.0


class PreemptionLog:
    """Warns of preemptions, at most once in a period."""

    def __init__(self) -> None:
        self._num_recomputed = 0
        self._num_swapped_out = 0
        self._quiet_until_s = 0.0

    def note(self, stats: StepStats, now_s: float) -> None:
        """Take in the counts of a step; a line gives the preemptions since the line before."""
        recomputed = stats.num_recomputed - self._num_recomputed
        swapped_out = stats.num_swapped_out - self._num_swapped_out
        if not (recomputed or swapped_out) or now_s < self._quiet_until_s:
            return
        self._num_recomputed = stats.num_recomputed
        self._num_swapped_out = stats.num_swapped_out
        self._quiet_until_s = now_s + PERIOD_S
        logger.warning(
            "preemptions recomputed=%d swapped_out=%d running=%d waiting=%d swapped=%d",
            recomputed,
            swapped_out,
            stats.num_running,
            stats.num_waiting,
            stats.num_swapped,
        )
