"""Requests of today's services, drawn: long prompts, shared beginnings, conversations."""

from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from load_tests.traffic.lengths import DATA_SETS, Lengths, read_joint_lengths
from load_tests.traffic.schedule import Extent, TracedRequest, poisson

# what `drawn_source` knows
SOURCES = ("azure-code", "azure-conversation", "chat", "system-prompts")
# tokens of a hashed block
HASH_BLOCK = 16
# of the longest request
MAX_TOTAL_LEN = 8192
# system prompts that the requests of a service begin with, and their tokens
NUM_SYSTEM_PROMPTS, SYSTEM_PROMPT_LEN = 4, 1024
# turns of a conversation, and seconds between them: reading, thinking and typing
MAX_TURNS, THINK_S = 8, 30.0


class RequestSource(Protocol):
    """Where the requests of a workload come from."""

    def requests(
        self, rate_per_s: float, num_requests: int, seed: int
    ) -> tuple[TracedRequest, ...]:
        """Make so many requests (fewer if there are no more) with a mean rate."""
        ...


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

    def requests(
        self, rate_per_s: float, num_requests: int, seed: int
    ) -> tuple[TracedRequest, ...]:
        """See `RequestSource.requests`."""
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
        return tuple(requests)


@dataclass(frozen=True, slots=True)
class Conversations:
    """A prompt is all that was said before and a new line; people think as long at any rate.

    Attributes:
        lengths: of a line and its answer.
    """

    lengths: Lengths

    def requests(
        self, rate_per_s: float, num_requests: int, seed: int
    ) -> tuple[TracedRequest, ...]:
        """See `RequestSource.requests`; it starts in the middle, with conversations under way."""
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
        return tuple(replace(r, due_s=r.due_s - warm_up_s) for r in kept[:num_requests])

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


def drawn_source(name: str) -> RequestSource:
    """One of `SOURCES`: Azure's of 2023, ShareGPT's in turns, Alpaca's behind system prompts.

    Raises:
        ValueError: if there is no such source.
    """

    def data(name: str) -> Lengths:
        return read_joint_lengths(DATA_SETS[name], MAX_TOTAL_LEN)

    match name:
        case "azure-code":
            return Drawn(lengths=data("azure_code"))
        case "azure-conversation":
            return Drawn(lengths=data("azure_conv"))
        case "chat":
            return Conversations(data("sharegpt"))
        case "system-prompts":
            return Drawn(
                lengths=data("alpaca"),
                num_prefixes=NUM_SYSTEM_PROMPTS,
                prefix_len=SYSTEM_PROMPT_LEN,
            )
    raise ValueError(f"{name!r} is not one of {', '.join(SOURCES)}")
