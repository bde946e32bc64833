"""Faults of traces: what a collector that is dead may hold up, and what is counted of it."""

from app.telemetry.traces.span_queue import SpanQueue
from tests.mutation.mutant import Fault

TELEMETRY_FAULTS = [
    Fault(
        what="spans are held without a bound",
        function=SpanQueue.can_take,
        old="self._num_held + num_spans <= self._max_spans",
        new="True",
        noticed_by="test_an_exporter_that_hangs_holds_up_nobody_and_what_does_not_fit_is_counted",
    ),
    Fault(
        what="spans that do not fit are not counted",
        function=SpanQueue.can_take,
        old="self._on_dropped(num_spans)",
        new="pass",
        noticed_by="test_an_exporter_that_hangs_holds_up_nobody_and_what_does_not_fit_is_counted",
    ),
    Fault(
        what="spans that a collector refused are not counted",
        function=SpanQueue._on_sent,
        old="if is_lost:",
        new="if False:",
        noticed_by="test_what_a_collector_refuses_is_counted_once",
    ),
    Fault(
        what="spans are held once they are sent",
        function=SpanQueue._on_sent,
        old="self._num_held -= num_spans",
        new="pass",
        noticed_by="test_what_a_collector_refuses_is_counted_once",
    ),
    Fault(
        what="the end waits as long as a collector hangs",
        function=SpanQueue.close,
        old="ending.join(limit_s)",
        new="ending.join()",
        noticed_by="test_the_end_does_not_wait_for_a_collector_that_hangs",
    ),
]
