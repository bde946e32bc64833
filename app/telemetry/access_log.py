"""One line in the log for each generation: numbers, names and digests, no text and no key."""

import logging
import time

from app.telemetry.request_record import RequestRecord

logger = logging.getLogger(__name__)

MAX_LINES_PER_S = 50


class AccessLog:
    """Logs generations, but not more than a log can take."""

    def __init__(self) -> None:
        self._second = 0
        self._num_lines = 0
        self._num_suppressed = 0

    def take(self, record: RequestRecord) -> None:
        """Log a request that has ended, if it is a generation."""
        if not record.is_generation or not logger.isEnabledFor(logging.INFO):
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._num_lines = second, 0
        if self._num_lines >= MAX_LINES_PER_S:
            self._num_suppressed += 1
            return
        self._num_lines += 1
        suppressed, self._num_suppressed = self._num_suppressed, 0
        logger.info(
            "generation %s%s",
            _line(record),
            f" suppressed={suppressed}" if suppressed else "",
            extra={"pagoda_request_id": record.request_id, "trace_id": record.trace_id},
        )


def _line(record: RequestRecord) -> str:
    fields = {
        "id": record.request_id,
        "api": record.route,
        "status": record.code,
        "outcome": record.outcome,
        "ms": round(1e3 * record.seconds),
        "prompt": record.num_prompt_tokens,
        "cached": record.num_cached_tokens,
        "out": record.num_output_tokens,
        "n": record.num_candidates,
        "preempted": record.num_preemptions,
        "key": record.key or "-",
        "trace": record.trace_id or "-",
    }
    return " ".join(f"{name}={value}" for name, value in fields.items())
