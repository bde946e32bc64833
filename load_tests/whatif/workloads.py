"""Workloads of today: long prompts, shared beginnings, conversations, beams."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Protocol

from load_tests.figures.workloads import PREFIX_LENS, Translations
from load_tests.traffic.lengths import DATA_SETS, Lengths, read_joint_lengths
from load_tests.traffic.metrics import Objective
from load_tests.traffic.schedule import Extent, poisson
from load_tests.whatif.trace import Trace, TracedRequest, read_traces

# tokens of a hashed block in the traces that are drawn here
HASH_BLOCK = 16
# of the longest request
MAX_TOTAL_LEN = 8192
# system prompts that the requests of a service begin with, and their tokens
NUM_SYSTEM_PROMPTS, SYSTEM_PROMPT_LEN = 4, 1024
# turns of a conversation, and seconds between them: reading, thinking and typing
MAX_TURNS, THINK_S = 8, 30.0
BEAM_WIDTH = 4
# prompts of 100,000 tokens take seconds alone; the limits are those of Mooncake's authors
# (https://arxiv.org/abs/2407.00079)
LEVEL, LONG_LEVEL = Objective(ttft_s=2.0, tpot_s=0.1), Objective(ttft_s=30.0, tpot_s=0.1)


class Source(Protocol):
    """Where the requests of a workload come from."""

    def trace(self, rate_per_s: float, num_requests: int, seed: int) -> Trace:
        """Make so many requests (fewer if there are no more) with a mean rate."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace file, at another speed."""

    path: Path

    def trace(self, rate_per_s: float, num_requests: int, seed: int) -> Trace:
        """See `Source.trace`; the first requests."""
        trace = read_traces([self.path], Extent(num_requests=num_requests))
        return trace.faster(rate_per_s * trace.duration_s / len(trace.requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Poisson arrivals, each of which begins with one of a few prefixes.

    Attributes:
        lengths: of what follows the prefix.
        num_prefixes: equally likely.
        prefix_len: tokens; those of a last block that is not full count as the request's own.
        beam_width: of all requests; 0 samples one sequence.
    """

    lengths: Lengths
    num_prefixes: int = 1
    prefix_len: int = 0
    beam_width: int = 0

    def trace(self, rate_per_s: float, num_requests: int, seed: int) -> Trace:
        """See `Source.trace`."""
        choices = Random(f"{seed} prefixes")
        num_blocks = self.prefix_len // HASH_BLOCK
        requests = []
        for plain in poisson(rate_per_s, self.lengths, Extent(num_requests=num_requests), seed):
            start = int(choices.random() * self.num_prefixes) * num_blocks
            requests.append(
                TracedRequest(
                    due_s=plain.due_s,
                    input_len=self.prefix_len + plain.input_len,
                    output_len=plain.output_len,
                    hash_ids=tuple(range(start, start + num_blocks)),
                    hash_block=HASH_BLOCK,
                    n=max(1, self.beam_width),
                    beam_width=self.beam_width,
                )
            )
        return Trace(requests=tuple(requests))


@dataclass(frozen=True, slots=True)
class Conversations:
    """A prompt is all that was said before and a new line; people think as long at any rate.

    Attributes:
        lengths: of a line and its answer.
    """

    lengths: Lengths

    def trace(self, rate_per_s: float, num_requests: int, seed: int) -> Trace:
        """See `Source.trace`; it starts in the middle, with conversations under way."""
        random = Random(f"{seed} conversations")
        warm_up_s = MAX_TURNS * THINK_S
        end_s = warm_up_s + num_requests / rate_per_s
        requests: list[TracedRequest] = []
        start_s, first_id = 0.0, 0
        while start_s < end_s:
            requests += self._conversation(random, start_s, first_id)
            first_id += MAX_TOTAL_LEN // HASH_BLOCK
            start_s += random.expovariate(2 * rate_per_s / (1 + MAX_TURNS))
        kept = sorted((r for r in requests if r.due_s >= warm_up_s), key=lambda r: r.due_s)
        return Trace(requests=tuple(_moved(r, -warm_up_s) for r in kept[:num_requests]))

    def _conversation(self, random: Random, due_s: float, first_id: int) -> list[TracedRequest]:
        requests, history_len = [], 0
        for _ in range(1 + int(random.random() * MAX_TURNS)):
            line_len, output_len = self.lengths.draw(random)
            input_len = history_len + line_len
            if input_len + output_len >= MAX_TOTAL_LEN:
                break
            # whatever a later prompt has there too is equal
            num_blocks = input_len // HASH_BLOCK
            requests.append(
                TracedRequest(
                    due_s=due_s,
                    input_len=input_len,
                    output_len=output_len,
                    hash_ids=tuple(range(first_id, first_id + num_blocks)),
                    hash_block=HASH_BLOCK,
                )
            )
            history_len = input_len + output_len
            due_s += random.expovariate(1 / THINK_S)
        return requests


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
    drawn: Source | None
    option: str = ""
    max_model_len: int = MAX_TOTAL_LEN
    objective: Objective = LEVEL

    def source(self, files: Mapping[str, Path]) -> Source | None:
        """The workload's file, or what is drawn; None if there is neither."""
        return Recorded(files[self.option]) if self.option in files else self.drawn


def workloads() -> tuple[Workload, ...]:
    """All of them."""

    def data(name: str) -> Lengths:
        return read_joint_lengths(DATA_SETS[name], MAX_TOTAL_LEN)

    return (
        Workload(
            title="code completion (Azure 2023)",
            drawn=Drawn(lengths=data("azure_code")),
            option="azure-code",
        ),
        Workload(
            title="conversation (Azure 2023)",
            drawn=Drawn(lengths=data("azure_conv")),
            option="azure-conversation",
        ),
        Workload(title="chat, up to 8 turns", drawn=Conversations(data("sharegpt"))),
        Workload(
            title="4 system prompts of 1024 tokens",
            drawn=Drawn(
                lengths=data("alpaca"),
                num_prefixes=NUM_SYSTEM_PROMPTS,
                prefix_len=SYSTEM_PROMPT_LEN,
            ),
        ),
        Workload(
            title="translation, 4 beams, 5 examples",
            drawn=Drawn(
                lengths=Translations(),
                prefix_len=PREFIX_LENS["translation_5"],
                beam_width=BEAM_WIDTH,
            ),
        ),
        Workload(
            title="long conversations (Mooncake)",
            drawn=None,
            option="mooncake",
            max_model_len=131_072,
            objective=LONG_LEVEL,
        ),
    )


def _moved(request: TracedRequest, by_s: float) -> TracedRequest:
    return replace(request, due_s=request.due_s + by_s)
