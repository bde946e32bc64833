"""A run of made-up steps, of two and three sequences in turn."""

from dataclasses import replace

from load_tests.paper.experiments.cells import Cell, CellResult
from load_tests.paper.runners.results import in_window, requests_per_s
from load_tests.paper.runners.stored_runs import CellRun, RunStep
from load_tests.traffic.latencies import Served
from load_tests.traffic.schedule import TimedRequest


def example_run(step_s: float) -> CellRun:
    """Ten seconds of steps, of which the first two do not count."""
    cell = Cell(rate_per_s=2.0, duration_s=10.0, window_from_s=2.0)
    steps = tuple(
        RunStep(end_s=step_s * (i + 1), step_s=step_s, num_sequences=2 + i % 2, num_decodes=2)
        for i in range(int(10 / step_s))
    )
    request = TimedRequest(due_s=0.5, input_len=4, output_len=5)
    rate = requests_per_s(in_window(cell, steps), [request], 1)
    result = CellResult(**dict.fromkeys(CellResult.__dataclass_fields__, 0))
    result = replace(result, sustained_per_s=rate)
    served = Served(request=request, first_token_s=1.0, finish_s=3.0)
    return CellRun(cell=cell, requests=(served,), steps=steps, result=result)
