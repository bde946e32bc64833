"""An executor without a model: each KV slot holds a hash of the token prefix that belongs there.

A wrong block table, a missing copy or a bad swap makes a sequence read a hash that is not its own,
which is noticed at the first read. A row or block given away while a plan in flight may still touch
it is noticed when the next plan takes it. Standard library only.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import InvariantViolated
from engine.types import Capacity, StepPlan, StepResult, float32, int32

EMPTY_PREFIX = 0


def extend_hash(prefix_hash: int, token: int) -> int:
    """Hash of a token prefix with one more token."""
    return hash((prefix_hash, token))


@dataclass(slots=True)
class _Row:
    """Attributes: prefix: hash at each position so far; last_token: None before the first."""

    table: dict[int, int] = field(default_factory=dict)
    prefix: list[int] = field(default_factory=list)
    last_token: int | None = None
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class _InFlight:
    result: StepResult
    rows: set[int]
    blocks: set[int]


class SymbolicExecutor:
    """Executes plans at once on hashes; results wait to be collected, as from a real worker."""

    def __init__(
        self, capacity: Capacity, next_token: Callable[[int], int], *, run_ahead: int = 1
    ) -> None:
        """Args: next_token: the token that follows a prefix, given its hash; -1 for an error."""
        self.capacity = capacity
        self.run_ahead = run_ahead
        self._next_token = next_token
        self._slots = [EMPTY_PREFIX] * capacity.num_slots
        self._swapped: dict[int, list[int]] = {}
        self._rows = [_Row() for _ in range(capacity.num_rows)]
        self._in_flight: deque[_InFlight] = deque()

    def submit(self, plan: StepPlan) -> None:
        """See `Executor.submit`.

        Raises:
            InvariantViolated: if a sequence would read or write what is not its own.
        """
        if len(self._in_flight) >= self.run_ahead:
            raise InvariantViolated(f"more than {self.run_ahead} plans in flight")
        self._check_not_in_flight(plan)
        self._apply_rows(plan)
        self._apply_blocks(plan)
        self._forward(plan)
        sampled = plan.sampled_rows
        result = StepResult(
            step=plan.step,
            rows=sampled,
            tokens=int32([self._sample(row) for row in sampled]),
            logprobs=float32([0.0] * len(sampled)),
        )
        rows = {*plan.decode_rows, *plan.prefill_rows}
        blocks = {block for row in rows for block in self._rows[row].table.values()}
        self._in_flight.append(_InFlight(result, rows, blocks))

    def collect(self) -> StepResult:
        """See `Executor.collect`."""
        return self._in_flight.popleft().result

    def close(self) -> None:
        """See `Executor.close`."""
        self._in_flight.clear()

    def _check_not_in_flight(self, plan: StepPlan) -> None:
        for other in self._in_flight:
            for row in other.rows.intersection(plan.releases):
                raise InvariantViolated(f"row {row} released while step {other.result.step} runs")
            for block in other.blocks.intersection(plan.append_blocks):
                raise InvariantViolated(f"block {block} reused while step {other.result.step} runs")

    def _apply_rows(self, plan: StepPlan) -> None:
        for row in plan.releases:
            self._require(self._rows[row].is_used, f"row {row} released twice")
            self._rows[row] = _Row()
        for admission in plan.admissions:
            self._require(not self._rows[admission.row].is_used, f"row {admission.row} taken twice")
            self._rows[admission.row] = _Row(is_used=True)
        for row, index, block in zip(
            plan.append_rows, plan.append_indices, plan.append_blocks, strict=True
        ):
            self._require(index == len(self._rows[row].table), f"hole in the table of row {row}")
            self._require(0 <= block < self.capacity.num_blocks, f"no block {block}")
            self._rows[row].table[index] = block

    def _apply_blocks(self, plan: StepPlan) -> None:
        for block, slot in zip(plan.swap_out_blocks, plan.swap_out_slots, strict=True):
            self._swapped[slot] = self._block(block)
        for slot, block in zip(plan.swap_in_slots, plan.swap_in_blocks, strict=True):
            self._write_block(block, self._swapped.pop(slot))
        for source, destination in zip(plan.copy_sources, plan.copy_destinations, strict=True):
            self._write_block(destination, self._block(source))

    def _forward(self, plan: StepPlan) -> None:
        for row in plan.decode_rows:
            last_token = self._rows[row].last_token
            if last_token is None:
                raise InvariantViolated(f"row {row} decodes before its prompt has ended")
            self._feed(row, last_token)
        end = 0
        for row, start, count in zip(
            plan.prefill_rows, plan.prefill_starts, plan.prefill_counts, strict=True
        ):
            self._require(start == len(self._rows[row].prefix), f"row {row} skips positions")
            for token in plan.prefill_tokens[end : end + count]:
                self._feed(row, token)
            end += count
        # every write of the step happens before any read of it, as in a layer of a real model
        for row in {*plan.decode_rows, *plan.prefill_rows}:
            self._check_reads(row)

    def _feed(self, row: int, token: int) -> None:
        state = self._rows[row]
        self._require(state.is_used, f"row {row} is free")
        state.prefix.append(extend_hash(state.prefix[-1] if state.prefix else EMPTY_PREFIX, token))
        self._slots[self._slot(row, len(state.prefix) - 1)] = state.prefix[-1]

    def _check_reads(self, row: int) -> None:
        for position, expected in enumerate(self._rows[row].prefix):
            found = self._slots[self._slot(row, position)]
            self._require(found == expected, f"row {row} reads a foreign key at {position}")

    def _sample(self, row: int) -> int:
        state = self._rows[row]
        state.last_token = self._next_token(state.prefix[-1])
        return state.last_token

    def _slot(self, row: int, position: int) -> int:
        index, offset = divmod(position, self.capacity.block_size)
        self._require(index in self._rows[row].table, f"row {row} has no block for {position}")
        return self._rows[row].table[index] * self.capacity.block_size + offset

    def _block(self, block: int) -> list[int]:
        size = self.capacity.block_size
        return self._slots[block * size : (block + 1) * size]

    def _write_block(self, block: int, values: list[int]) -> None:
        size = self.capacity.block_size
        self._slots[block * size : (block + 1) * size] = values

    @staticmethod
    def _require(condition: bool, message: str) -> None:
        if not condition:
            raise InvariantViolated(message)
