"""When a token passes the borders of its way: from the client into a step, and from there back.

Client and worker read one clock, that of the machine. What comes is taken for that of the last step
which had ended by then, so the way back must take less than a step.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from load_tests.http.drive import LoadRun


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderTimes:
    """Milliseconds on the way, one for each request or chunk.

    Attributes:
        inwards: from sending a request to the begin of the step that gives its first token.
        first: from the end of that step to the client.
        outwards: from the end of a step to the client, of all later chunks.
    """

    inwards: list[float]
    first: list[float]
    outwards: list[float]


def border_times(run: LoadRun, ended_s: Sequence[float], step_s: float) -> BorderTimes:
    """Compare what a client has seen with the steps.

    Args:
        ended_s: of the steps, in order, on the clock of the client.
        step_s: what a step takes.
    """
    times = BorderTimes(inwards=[], first=[], outwards=[])
    for record in run.records:
        for index, chunk_s in enumerate(record.chunk_s):
            at_s = run.started_s + chunk_s
            step = bisect_right(ended_s, at_s) - 1
            if step < 0:
                continue
            late_ms = 1e3 * (at_s - ended_s[step])
            (times.outwards if index else times.first).append(late_ms)
            if not index:
                begun_s = ended_s[step] - step_s
                times.inwards.append(1e3 * (begun_s - run.started_s - record.sent_s))
    return times
