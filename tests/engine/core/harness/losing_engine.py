"""An engine that is lost now and then, and requests that go on with another one in its place."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from engine.core.engine import Engine
from engine.runtime.client.deltas import deltas
from engine.runtime.client.journal import Journal
from engine.runtime.messages import REQUESTS
from engine.runtime.protocol import Delta
from engine.types import (
    ALL_CHOICES,
    BEAM_CHOICE,
    PROMPT_CHOICE,
    FinishReason,
    IntColumn,
    Progress,
    Request,
    SamplingParams,
    StepPlan,
    StepStats,
)
from tests.engine.core.harness.checking_executor import CheckingExecutor
from tests.engine.core.harness.expectations import Setting

NONE = FinishReason.NONE
Step = list[tuple[int, int, int, float]]


@dataclass(slots=True)
class Got:
    """What the reader of one choice, of the prompt's scores or of a search has got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reason: FinishReason = NONE

    def take(self, delta: Delta) -> None:
        assert self.reason is NONE, "output after the end"
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        for tokens, logprobs in zip(delta.top_tokens, delta.top_logprobs, strict=True):
            self.tops.append(list(zip(tokens, logprobs, strict=True)))
        for step in delta.beam_steps:
            rows = zip(step.indices, step.parents, step.tokens, step.logprobs, strict=True)
            self.steps.append(list(rows))
        self.reason = delta.finish_reason


class ProbationExecutor(CheckingExecutor):
    """Checks that nothing is computed beside a request on probation."""

    def __init__(self, setting: Setting, on_probation: set[int]) -> None:
        super().__init__(setting, lambda _: False)
        self.on_probation = on_probation
        self.num_solo_steps = 0

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        rows = (*plan.decode_rows, *plan.prefill_rows, *plan.sibling_rows)
        computed = {self.holders[row] for row in rows}
        if computed & self.on_probation:
            assert len(computed) == 1, "something runs beside a request on probation"
            self.num_solo_steps += 1


class LosingEngine:
    """Requests are known by a number, whatever id they have in the engine of the moment.

    Attributes:
        got: by number and choice.
        num_cached: by number, each report of cached tokens.
        resumed: how many requests went on, by what they had got.
        suspects: by number, the tokens of their probation on the next engine.
        num_cleared: probations that ended before their request.
    """

    def __init__(self, make: Callable[[set[int]], Engine]) -> None:
        """Args: make: begins an engine; gets the numbers of requests on probation, as they are."""
        self._make = make
        self.suspects: dict[int, int] = {}
        self.num_cleared = 0
        self._on_probation: set[int] = set()
        self._num_since: Counter[tuple[int, int]] = Counter()
        self._engine = make(self._on_probation)
        self._next_id = 0
        self._numbers: dict[int, int] = {}
        self._journals: list[Journal] = []
        self._samplings: list[SamplingParams] = []
        self._now_s = 0.0
        self.got: dict[tuple[int, int], Got] = {}
        self.num_cached: dict[int, list[int]] = {}
        # what the engine of the moment has reported the end of
        self._ends: set[tuple[int, int]] = set()
        self.stats: StepStats | None = None
        self.resumed: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def num_steps(self) -> int:
        return int(self._now_s)

    def is_open(self, number: int) -> bool:
        choices = range(self._samplings[number].n)
        return any(self.got[number, choice].reason is NONE for choice in choices)

    def prompt_len(self, number: int) -> int:
        return len(self._journals[number].new(0).prompt)

    def add(self, prompt: IntColumn, sampling: SamplingParams, salt: bytes = b"") -> None:
        number = len(self._journals)
        request = Request(request_id=0, prompt=prompt, sampling=sampling, salt=salt)
        self._journals.append(Journal(request, self._now_s))
        self._samplings.append(sampling)
        self.num_cached[number] = []
        for choice in (*range(sampling.n), PROMPT_CHOICE, BEAM_CHOICE):
            self.got[number, choice] = Got()
        self._submit(number, self._journals[number].new(self._new_id(number)))

    def abort_choice(self, number: int, choice: int) -> None:
        """What the reader does at a stop string, while other choices go on."""
        got = self.got[number, choice]
        if got.reason is not NONE:
            return
        got.reason = FinishReason.ABORT
        self._journals[number].end(choice, FinishReason.ABORT)
        [latest] = [key for key, value in self._numbers.items() if value == number]
        self._engine.scheduler.abort(latest, choice if self.is_open(number) else ALL_CHOICES)

    def step(self) -> None:
        self._now_s += 1.0
        output = self._engine.step(self._now_s)
        if output is None:
            return
        self.stats = output.stats
        assert not output.refusals
        for request_id, delta in deltas([output]):
            number = self._numbers[request_id]
            got = self.got[number, delta.choice]
            if delta.finish_reason is not NONE:
                self._ends.add((request_id, delta.choice))
            if delta.num_cached:
                self.num_cached[number].append(delta.num_cached)
            if delta.choice >= 0 and got.reason is not NONE:
                assert not delta.tokens or got.reason is FinishReason.ABORT
                continue
            got.take(delta)
            self._journals[number].note(delta)
            self._count(number, delta)

    def lose(self, order: Random) -> None:
        """Begin a new engine with all requests that are open."""
        self._on_probation, self._num_since = set(self.suspects), Counter()
        self._engine = self._make(self._on_probation)
        self._numbers, self._ends, self.stats = {}, set(), None
        numbers = [number for number in range(len(self._journals)) if self.is_open(number)]
        order.shuffle(numbers)
        for number in numbers:
            solo_tokens = self.suspects.get(number, 0)
            request = self._journals[number].resumed(
                self._new_id(number), self._now_s, solo_tokens=solo_tokens
            )
            self._submit(number, request)

    def drain(self) -> None:
        while self.has_work:
            self.step()
        assert not any(map(self.is_open, range(len(self._journals)))), "a request is left"
        for request_id, number in self._numbers.items():
            ends = {(request_id, choice) for choice in range(self._samplings[number].n)}
            # a replica counts the ends, also of choices that an engine before has ended
            assert ends <= self._ends, f"not every choice of {number} has ended"
        if self.stats is None:
            # nothing was open when the last engine began
            return
        usage = self.stats.usage
        assert usage.free + usage.cached == usage.total, "blocks leaked"
        assert usage.swapped == 0, "swap blocks leaked"

    def _count(self, number: int, delta: Delta) -> None:
        """Note when a probation ends: by the tokens of a choice, or the steps of a search."""
        key = number, delta.choice
        self._num_since[key] += len(delta.tokens) if delta.choice >= 0 else len(delta.beam_steps)
        is_silent = self._samplings[number].beam_width and not delta.beam_steps
        is_over = number in self._on_probation and self._num_since[key] >= self.suspects[number]
        if is_over and not is_silent:
            self._on_probation.remove(number)
            self.num_cleared += self.is_open(number)

    def _new_id(self, number: int) -> int:
        self._next_id += 1
        self._numbers[self._next_id] = number
        return self._next_id

    def _submit(self, number: int, request: Request) -> None:
        # as it comes out of the messages between the processes
        request = REQUESTS.decode(REQUESTS.encode(request))
        age_s = 0.0
        if request.progress is not None:
            age_s = request.progress.age_s
            self.resumed.update(kinds_of(request.progress))
        self._engine.scheduler.add(replace(request, arrival_s=self._now_s - age_s))


def kinds_of(progress: Progress) -> list[str]:
    """What a request has got that goes on."""
    ended = any(progress.finish_reasons)
    return [
        *(["several choices"] if sum(map(bool, progress.counts)) > 1 else []),
        *(["one choice"] if sum(map(bool, progress.counts)) == 1 else []),
        *(["an end"] if ended and progress.tokens else []),
        *(["an end before the beginning"] if ended and not progress.tokens else []),
        *(["beams"] if progress.search is not None else []),
        *(["alternatives of beams"] if progress.search and progress.search.top_counts else []),
        *(["a part of the prompt"] if progress.num_prompt_scored and not progress.tokens else []),
        *(["nothing"] if not progress.tokens and progress.search is None else []),
        *(["probation"] if progress.solo_tokens else []),
    ]


def equal_to(undisturbed: LosingEngine, lost: LosingEngine, aborted: Iterable[int] = ()) -> None:
    """Check that readers got the same, whatever was lost in between.

    Args:
        aborted: requests of which choices were aborted, at other moments of their output.
    """
    for key, right in undisturbed.got.items():
        got, number = lost.got[key], key[0]
        if number not in aborted:
            assert got == right, key
        elif key[1] >= 0:
            length = min(len(got.tokens), len(right.tokens))
            assert got.tokens[:length] == right.tokens[:length], key
    for number, counts in lost.num_cached.items():
        assert len(counts) <= 1, f"cached tokens of {number} were reported twice"
        assert sum(counts) <= lost.prompt_len(number), "more was found than there is"
