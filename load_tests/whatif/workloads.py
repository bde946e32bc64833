"""Workloads of today: long prompts, shared beginnings, conversations, beams."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from load_tests.paper.experiments.workloads import PREFIX_LENS, Translations
from load_tests.traffic.latencies import Objective
from load_tests.traffic.schedule import Extent, TracedRequest
from load_tests.traffic.sources import MAX_TOTAL_LEN, Drawn, RequestSource, drawn_source
from load_tests.traffic.trace import read_traces

BEAM_WIDTH = 4
# prompts of 100,000 tokens take seconds by themselves; the limits are those of Mooncake's authors
# (https://arxiv.org/abs/2407.00079)
LEVEL, LONG_LEVEL = Objective(ttft_s=2.0, tpot_s=0.1), Objective(ttft_s=30.0, tpot_s=0.1)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace file, at another speed."""

    path: Path

    def requests(
        self, rate_per_s: float, num_requests: int, seed: int
    ) -> tuple[TracedRequest, ...]:
        """See `RequestSource.requests`; the first ones."""
        trace = read_traces([self.path], Extent(num_requests=num_requests))
        return trace.faster(rate_per_s * trace.duration_s / len(trace.requests)).requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kind of requests.

    Attributes:
        title: for tables.
        drawn: where there is no file; None if there must be one.
        option: of the command that names a file to replay; empty for none.
        max_model_len: that the requests need.
        objective: what counts as a good request, unless another is asked for.
    """

    title: str
    drawn: RequestSource | None = None
    option: str = ""
    max_model_len: int = MAX_TOTAL_LEN
    objective: Objective = LEVEL

    def source(self, files: Mapping[str, Path]) -> RequestSource | None:
        """The workload's file, or what is drawn; None if there is neither."""
        return Recorded(files[self.option]) if self.option in files else self.drawn


def workloads() -> tuple[Workload, ...]:
    """All of them."""
    translation = Drawn(
        lengths=Translations(), prefix_len=PREFIX_LENS["translation_5"], beam_width=BEAM_WIDTH
    )
    return (
        _drawn("code completion (Azure 2023)", "azure-code", option="azure-code"),
        _drawn("conversation (Azure 2023)", "azure-conversation", option="azure-conversation"),
        _drawn("chat, up to 8 turns", "chat"),
        _drawn("4 system prompts of 1024 tokens", "system-prompts"),
        Workload(title="translation, 4 beams, 5 examples", drawn=translation),
        Workload(
            title="long conversations (Mooncake)",
            option="mooncake",
            max_model_len=131_072,
            objective=LONG_LEVEL,
        ),
    )


def _drawn(title: str, source: str, option: str = "") -> Workload:
    return Workload(title=title, drawn=drawn_source(source), option=option)
