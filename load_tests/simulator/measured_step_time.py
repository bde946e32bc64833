"""How long a step takes: interpolated between steps that were measured."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from engine.errors import ConfigError
from load_tests.simulator.step_time import StepTime, StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedTimes:
    """What the tokens of prompts add to steps that decode, measured.

    Attributes:
        batches, prompt_lens: decodes, and tokens of prompts beside them, each increasing.
        added_s: seconds by batch, then by tokens of prompts; a row may end before its axis does.
        padded_len, padded_batch: up to so many tokens of prompts, and so many decodes beside them,
            the device computes as much as for the next size measured, as captured graphs do.
    """

    batches: tuple[int, ...]
    prompt_lens: tuple[int, ...]
    added_s: tuple[tuple[float, ...], ...]
    padded_len: int = 0
    padded_batch: int = 0

    def size(self, batch: int, num_tokens: int) -> int:
        """Decodes that are computed for a batch beside so many tokens of prompts."""
        if num_tokens > self.padded_len:
            return batch
        return _padded(self.batches, batch, self.padded_batch)

    def seconds(self, batch: int, num_tokens: int) -> float:
        """Seconds that so many tokens of prompts add.

        Beside more decodes than were measured they add as much as beside the most.

        Raises:
            ConfigError: if there are more tokens of prompts than measured.
        """
        batch = self.size(batch, num_tokens)
        num_tokens = _padded(self.prompt_lens, num_tokens, self.padded_len)
        row, share = _place(self.batches, min(batch, self.batches[-1]), "sequences")
        ends = [_along(self.prompt_lens, row, num_tokens, "prompt tokens") for row in self.added_s]
        return _between(ends, row, share)


class MeasuredStepTime:
    """Interpolates between measured steps, linearly; larger work never takes less time.

    A step that mixes decodes and prefills streams the weights once: where it is not measured, it
    takes the sum of both less the shortest step measured.
    """

    def __init__(
        self,
        *,
        batches: tuple[int, ...],
        contexts: tuple[int, ...],
        decode_s: tuple[tuple[float, ...], ...],
        prompt_lens: tuple[int, ...],
        prefill_s: tuple[float, ...],
        mixed: MixedTimes | None = None,
    ) -> None:
        """Take the measurements; noise is taken out where more work took less time.

        Args:
            batches: sequences of the decode steps, increasing.
            contexts: positions of each of their sequences, increasing.
            decode_s: seconds by batch, then by context. A row may end where the pool was full; its
                last slope goes on, as attention takes a time for each position.
            prompt_lens: tokens of the prefill steps, increasing.
            prefill_s: seconds for each.
            mixed: of steps with both.

        Raises:
            ConfigError: if a table does not match its axes or an axis does not increase.
        """
        _check_grid(batches, contexts, decode_s)
        _check_grid((1,), prompt_lens, (prefill_s,))
        if len(prefill_s) != len(prompt_lens):
            raise ConfigError("the table of step times does not match its axes")
        if mixed:
            _check_grid(mixed.batches, mixed.prompt_lens, mixed.added_s)
        self._batches, self._contexts, self._prompt_lens = batches, contexts, prompt_lens
        self._decode_s = _rising_grid(decode_s)
        (self._prefill_s,) = _rising_grid((prefill_s,))
        self._mixed = mixed

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`.

        Work below the smallest measured takes as long as that.

        Raises:
            ConfigError: if the work lies beyond the largest measured.
        """
        num_prompt_tokens = work.num_prompt_tokens
        if not work.num_decodes:
            return self._prefill(num_prompt_tokens)
        size = work.num_decodes
        if num_prompt_tokens and self._mixed:
            # padded as far as is measured
            padded = self._mixed.size(size, num_prompt_tokens)
            size = max(size, min(padded, self._batches[-1]))
        decode_s = self._decode(size, work.num_decode_positions)
        if not num_prompt_tokens:
            return decode_s
        if self._mixed and num_prompt_tokens <= self._mixed.prompt_lens[-1]:
            return decode_s + self._mixed.seconds(work.num_decodes, num_prompt_tokens)
        shortest_s = min(self._decode_s[0][0], self._prefill_s[0])
        return decode_s + self._prefill(num_prompt_tokens) - shortest_s

    def _prefill(self, num_tokens: int) -> float:
        if self._mixed:
            num_tokens = _padded(self._prompt_lens, num_tokens, self._mixed.padded_len)
        return _along(self._prompt_lens, self._prefill_s, num_tokens, "prompt tokens")

    def _decode(self, batch: int, num_positions: int) -> float:
        row, share = _place(self._batches, batch, "sequences")
        context = num_positions / batch
        ends = [_along(self._contexts, times, context, "positions") for times in self._decode_s]
        return _between(ends, row, share)


@dataclass(frozen=True, slots=True)
class WithFilledBatches:
    """Fills batches that only decode up to the next of some sizes, as captured graphs do.

    Attributes:
        sizes: increasing; larger batches stay as they are.
    """

    step_time: StepTime
    sizes: tuple[int, ...]

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        if 0 < work.num_decodes == len(work.contexts):
            size = _padded(self.sizes, work.num_decodes, self.sizes[-1])
            contexts = work.contexts + (0,) * (size - work.num_decodes)
            work = replace(work, new_tokens=(1,) * size, contexts=contexts, num_decodes=size)
        return self.step_time.seconds(work)


@dataclass(frozen=True, slots=True)
class WithSharedPrefix:
    """Takes less time for positions that every decode reads from the same blocks.

    Attributes:
        num_tokens: that all sequences begin with.
        cost: time of one such position over that of a sequence's own, measured.
    """

    step_time: StepTime
    num_tokens: int
    cost: float

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        num_decodes = work.num_decodes
        if num_decodes:
            num_positions = work.num_decode_positions
            saved = (1 - self.cost) * min(num_decodes * self.num_tokens, num_positions)
            others = (0,) * (num_decodes - 1) + work.contexts[num_decodes:]
            work = replace(work, contexts=(round(num_positions - saved), *others))
        return self.step_time.seconds(work)


def _padded(axis: tuple[int, ...], value: int, limit: int) -> int:
    """The next size on an axis, up to a limit."""
    return value if value > min(limit, axis[-1]) else axis[bisect_left(axis, value)]


def _check_grid(
    rows: tuple[int, ...], columns: tuple[int, ...], values: tuple[tuple[float, ...], ...]
) -> None:
    least = min(2, len(columns))
    if len(rows) != len(values) or any(not least <= len(row) <= len(columns) for row in values):
        raise ConfigError("the table of step times does not match its axes")
    for axis in (rows, columns):
        if not axis or list(axis) != sorted(set(axis)) or axis[0] < 1:
            raise ConfigError(f"the axis {axis} of the step times does not increase from 1 on")


def _rising_grid(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    """Where values fall, along a row or from row to row, the middle of those that do.

    That of the running maxima from the start and the running minima from the end, so that noise
    makes no step longer on the whole.
    """
    num_columns = max(map(len, rows))
    highest, lowest = [0.0] * num_columns, [inf] * num_columns
    maxima, minima = [], []
    for row in rows:
        highest[: len(row)] = map(max, accumulate(row, max), highest)
        maxima.append(highest[: len(row)])
    for row in reversed(rows):
        lowest[: len(row)] = map(min, [*accumulate(row[::-1], min)][::-1], lowest)
        minima.append(lowest[: len(row)])
    return tuple(
        tuple((high + low) / 2 for high, low in zip(*pair, strict=True))
        for pair in zip(maxima, reversed(minima), strict=True)
    )


def _place(axis: tuple[int, ...], value: float, what: str) -> tuple[int, float]:
    """Index of the axis point before a value, and the share of the way to the next."""
    if value > axis[-1]:
        raise ConfigError(f"a step of {value:g} {what}: step times are measured up to {axis[-1]}")
    index = max(1, bisect_left(axis, value))
    if index == len(axis):
        return 0, 0.0
    low, high = axis[index - 1], axis[index]
    return index - 1, max(0.0, (value - low) / (high - low))


def _along(axis: tuple[int, ...], values: Sequence[float], value: float, what: str) -> float:
    """Interpolate in a row; the last slope of one that ends before its axis goes on."""
    index, share = _place(axis, value, what)
    last = len(values) - 2
    if index > last >= 0:
        index, share = last, (value - axis[last]) / (axis[last + 1] - axis[last])
    return _between(values, index, share)


def _between(values: Sequence[float], index: int, share: float) -> float:
    if share == 0.0:
        return values[index]
    return values[index] + share * (values[index + 1] - values[index])
