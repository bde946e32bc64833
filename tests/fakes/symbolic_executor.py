"""An executor without a model: each KV slot holds a hash of the token prefix that belongs there.

A wrong block table, a missing copy or a bad swap makes a sequence read a hash that is not its own,
which is noticed at the first read. So is a block that is written while it is copied to the swap
space, and a swap block that does not hold what the plan says. Hashes that a row takes over from the
pool must form a chain with the tokens that were fed; whether it is the right chain shows in the
tokens that follow. A row or block given away while a plan in flight may still touch it is noticed
when the next plan takes it. With windows each group of layers has hashes of its own, and only what
its windows hold is read. Standard library only.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.errors import InvariantViolated
from engine.types import (
    KEY_WORDS,
    Capacity,
    IntColumn,
    SamplingParams,
    StepPlan,
    StepResult,
    float32,
    int32,
)

EMPTY_PREFIX = 0
_EMPTY_SLOT = (EMPTY_PREFIX, -1)
# hash of what comes from a spoiled swap block
_SPOILED = -1
# instead of the hash of a position that was adopted and that no window holds
_UNKNOWN = -2


def extend_hash(prefix_hash: int, token: int) -> int:
    """Hash of a token prefix with one more token."""
    return hash((prefix_hash, token))


class SymbolicModel:
    """A language model over token ids [0, vocab_size) that is a pure function of the prefix."""

    def __init__(self, vocab_size: int = 17) -> None:
        self.vocab_size = vocab_size

    def sample(self, prefix_hash: int, seed: int) -> int:
        """The token that follows a prefix, for a seed; -1 for an error."""
        return hash((prefix_hash, seed)) % self.vocab_size

    def candidates(self, prefix_hash: int, count: int) -> list[tuple[int, float]]:
        """Most likely (token, logprob) pairs, best first."""
        scored = [
            # in steps that float32 holds exactly
            (token, -1 - (hash((token, prefix_hash, token)) % 4096) / 512)
            for token in range(self.vocab_size)
        ]
        scored.sort(key=lambda pair: -pair[1])
        return scored[:count]


@dataclass(slots=True)
class _Row:
    """A row of the table.

    Attributes:
        known_tokens: tokens that came with the admission.
        prompt_len: tokens of the prompt.
        length: positions that were in the pool when the row was admitted.
        prefix: hash at each position so far.
        start: first position that the plan feeds.
        last_token: None before the first.
    """

    sampling: SamplingParams | None = None
    seed: int = 0
    known_tokens: IntColumn = field(default_factory=int32)
    prompt_len: int = 0
    length: int = 0
    table: dict[int, int] = field(default_factory=dict)
    prefix: list[int] = field(default_factory=list)
    start: int = 0
    last_token: int | None = None


def _of_group(prefix_hash: int, group: int) -> int:
    """What a group of layers holds of a prefix; the first holds the hash itself."""
    return hash((prefix_hash, group)) if group and prefix_hash != _SPOILED else prefix_hash


@dataclass(frozen=True, slots=True)
class _InFlight:
    result: StepResult
    rows: set[int]
    slots: dict[int, set[int]]


class SymbolicExecutor:
    """Executes plans at once on hashes; results wait to be collected, as from a real worker.

    Attributes:
        spoiled: swap blocks that will be found to be changed when they are read.
        num_swapped_in: swap blocks that were read.
        num_spoiled: swap blocks that were read and found to be changed.
    """

    def __init__(
        self, capacity: Capacity, model: SymbolicModel | None = None, *, run_ahead: int = 1
    ) -> None:
        self.spoiled: set[int] = set()
        self.num_swapped_in = 0
        self.num_spoiled = 0
        self.capacity = capacity
        self.run_ahead = run_ahead
        self._model = model or SymbolicModel()
        # prefix hash and last token of each slot
        self._slots = [_EMPTY_SLOT] * (capacity.num_blocks * capacity.block_size)
        self._swapped: dict[int, list[tuple[int, int]]] = {}
        self._swap_keys: dict[int, IntColumn] = {}
        # blocks that the plan copies to the swap space while it computes, and what it found spoiled
        self._leaving: set[int] = set()
        self._found_spoiled = int32()
        self._rows = [_Row() for _ in range(capacity.num_rows)]
        self._in_flight: deque[_InFlight] = deque()

    def submit(self, plan: StepPlan) -> None:
        """See `Executor.submit`.

        Raises:
            InvariantViolated: if a sequence would read or write what is not its own.
        """
        if len(self._in_flight) >= self.run_ahead:
            raise InvariantViolated(f"more than {self.run_ahead} plans in flight")
        self._check_rows(plan)
        self._apply_rows(plan)
        self._apply_blocks(plan)
        self._forward(plan)
        for row, parent in zip(plan.sibling_rows, plan.sibling_parents, strict=True):
            self._rows[row].prefix = list(self._rows[parent].prefix)
            self._rows[row].start = self._rows[parent].start
        rows = {*plan.decode_rows, *plan.prefill_rows, *plan.sibling_rows}
        # a sibling samples from its parent's logits; its own blocks may be filled after the step
        fed = rows.difference(plan.sibling_rows)
        # plans run in order: a later one may write what windows have left by the end of this one
        slots = {
            row: {
                self._slot(row, position, group)
                for group, position in self._seen(row, len(self._rows[row].prefix))
            }
            for row in fed
        }
        for other in self._in_flight:
            for row in fed:
                other.slots.pop(row, None)
        self._in_flight.append(_InFlight(self._sample(plan), rows, slots))

    def collect(self) -> StepResult:
        """See `Executor.collect`."""
        return self._in_flight.popleft().result

    def close(self) -> None:
        """See `Executor.close`."""
        self._in_flight.clear()

    def _check_rows(self, plan: StepPlan) -> None:
        rows = plan.releases + plan.fork_parents + plan.fork_children + plan.append_rows
        rows += plan.token_rows + plan.decode_rows + plan.prefill_rows + plan.sibling_rows
        for row in rows:
            self._require(0 <= row < self.capacity.num_rows, f"no row {row}")
        for other in self._in_flight:
            for row in other.rows.intersection(plan.releases):
                raise InvariantViolated(f"row {row} released while step {other.result.step} runs")

    def _apply_rows(self, plan: StepPlan) -> None:
        for row in plan.releases:
            self._require(self._rows[row].sampling is not None, f"row {row} released twice")
            self._rows[row] = _Row()
        for admission in plan.admissions:
            self._require(
                self._rows[admission.row].sampling is None, f"row {admission.row} taken twice"
            )
            self._rows[admission.row] = _Row(
                sampling=admission.sampling,
                seed=admission.sampling.seed + admission.choice,
                known_tokens=admission.known_tokens,
                prompt_len=admission.prompt_len,
                length=admission.length,
            )
        for parent, child in zip(plan.fork_parents, plan.fork_children, strict=True):
            source = self._rows[parent]
            self._rows[child].table = dict(source.table)
            self._rows[child].prefix = list(source.prefix)
        for row, index, block in zip(
            plan.append_rows, plan.append_indices, plan.append_blocks, strict=True
        ):
            self._require(index <= len(self._rows[row].table), f"hole in the table of row {row}")
            self._require(0 <= block < self.capacity.num_blocks, f"no block {block}")
            self._rows[row].table[index] = block
        for row, token in zip(plan.token_rows, plan.token_values, strict=True):
            self._rows[row].last_token = token

    def _apply_blocks(self, plan: StepPlan) -> None:
        self._leaving = set()
        self._found_spoiled = int32()
        written = set(plan.swap_out_destinations)
        self._require(len(written) == len(plan.swap_out_destinations), "a slot is written twice")
        for index, slot in enumerate(plan.swap_out_destinations):
            self._require(0 <= slot < self.capacity.num_swap_blocks, f"no swap slot {slot}")
            key = plan.swap_out_keys[index * KEY_WORDS : (index + 1) * KEY_WORDS]
            self._swapped[slot] = self._block(plan.swap_out_sources[index])
            self._swap_keys[slot] = key
            self.spoiled.discard(slot)
            # zeros overwrite a slot with anything
            if any(key):
                self._leaving.add(plan.swap_out_sources[index])
        # what is handed out anew is waited for
        self._leaving -= {*plan.append_blocks, *plan.copy_destinations, *plan.swap_in_destinations}
        for index, slot in enumerate(plan.swap_in_sources):
            key = plan.swap_in_keys[index * KEY_WORDS : (index + 1) * KEY_WORDS]
            self._require(slot in self._swapped, f"swap slot {slot} is empty")
            self._require(self._swap_keys[slot] == key, f"swap slot {slot} holds another block")
            self._read_slot(slot, plan.swap_in_destinations[index])
        for source, destination in zip(plan.copy_sources, plan.copy_destinations, strict=True):
            self._write_block(destination, self._block(source))

    def _read_slot(self, slot: int, block: int) -> None:
        self.num_swapped_in += 1
        if slot not in self.spoiled:
            self._write_block(block, self._swapped[slot])
            return
        self._found_spoiled.append(slot)
        self.num_spoiled += 1
        self._write_block(block, [(_SPOILED, 0)] * self.capacity.block_size)

    def _forward(self, plan: StepPlan) -> None:
        for row in plan.decode_rows:
            self._adopt(row)
            last_token = self._rows[row].last_token
            if last_token is None:
                raise InvariantViolated(f"row {row} decodes before its prompt has ended")
            self._rows[row].start = len(self._rows[row].prefix)
            self._feed(row, last_token)
        end = 0
        for row, start, count in zip(
            plan.prefill_rows, plan.prefill_starts, plan.prefill_counts, strict=True
        ):
            if not self._rows[row].prefix:
                self._rows[row].length = start
                self._adopt(row)
            self._require(start == len(self._rows[row].prefix), f"row {row} skips positions")
            self._require(count > 0, f"row {row} has nothing to compute")
            self._rows[row].start = start
            for token in plan.prefill_tokens[end : end + count]:
                self._feed(row, token)
            end += count
        # every write of the step happens before any read of it, as in a layer of a real model
        for row in {*plan.decode_rows, *plan.prefill_rows}:
            self._check_reads(row)

    def _feed(self, row: int, token: int) -> None:
        state = self._rows[row]
        self._require(state.sampling is not None, f"row {row} is free")
        before = state.prefix[-1] if state.prefix else EMPTY_PREFIX
        self._require(before != _UNKNOWN, f"row {row} does not know what it goes on from")
        state.prefix.append(_SPOILED if before == _SPOILED else extend_hash(before, token))
        for group in range(len(self.capacity.windows)):
            slot = self._slot(row, len(state.prefix) - 1, group)
            self._check_write(slot)
            self._slots[slot] = (_of_group(state.prefix[-1], group), token)

    def _check_write(self, slot: int) -> None:
        block = slot // self.capacity.block_size
        self._require(block not in self._leaving, f"block {block} is on its way out")
        for other in self._in_flight:
            is_in_use = any(slot in slots for slots in other.slots.values())
            self._require(not is_in_use, f"slot {slot} is still in use")

    def _check_reads(self, row: int) -> None:
        state = self._rows[row]
        for group, position in self._seen(row, state.start):
            expected = state.prefix[position]
            if expected in (_SPOILED, _UNKNOWN):
                continue
            found = self._slots[self._slot(row, position, group)][0]
            if found != _of_group(expected, group) and _SPOILED not in state.prefix[:position]:
                raise InvariantViolated(f"row {row} reads a foreign key at {position} of {group}")

    def _seen(self, row: int, start: int) -> Iterator[tuple[int, int]]:
        """Groups and positions that are read for the tokens from `start` on."""
        for group, window in enumerate(self.capacity.windows):
            first = max(0, start - window + 1) if window else 0
            yield from ((group, position) for position in range(first, len(self._rows[row].prefix)))

    def _live_blocks(self, row: int) -> set[int]:
        """Blocks that a row may still read."""
        state, size = self._rows[row], self.capacity.block_size
        count = len(self.capacity.windows)
        held: set[int] = set()
        for index, block in state.table.items():
            window = self.capacity.windows[index % count]
            end = (index // count + 1) * size
            if not window or end > len(state.prefix) - window:
                held.add(block)
        return held

    def _adopt(self, row: int) -> None:
        """Take positions that were computed before the row was admitted from the pool."""
        state = self._rows[row]
        if state.prefix:
            return
        window = self.capacity.windows[0]
        first = max(0, state.length - window + 1) if window else 0
        state.prefix = [_UNKNOWN] * first
        for position in range(first, state.length):
            prefix_hash, token = self._slots[self._slot(row, position)]
            expected = extend_hash(state.prefix[-1] if state.prefix else EMPTY_PREFIX, token)
            if position == first > 0:
                expected = prefix_hash
            if _SPOILED in (*self._hashes(row, position), *state.prefix[-1:]):
                # everything that follows is worthless
                prefix_hash = expected = _SPOILED
            self._require(prefix_hash == expected, f"row {row} adopts a foreign key at {position}")
            state.prefix.append(prefix_hash)

    def _hashes(self, row: int, position: int) -> Iterator[int]:
        """What the groups hold of a position, as far as their windows reach at the adoption."""
        for group, window in enumerate(self.capacity.windows):
            if not window or position > self._rows[row].length - window:
                yield self._slots[self._slot(row, position, group)][0]

    def _sample(self, plan: StepPlan) -> StepResult:
        rows = plan.sampled_rows
        tops = [self._candidates(row) for row in rows]
        tokens = [self._next_token(self._rows[row]) for row in rows]
        for row, position in self._scored_positions(plan):
            state = self._rows[row]
            assert state.sampling is not None
            rows.append(row)
            tokens.append(state.known_tokens[position + 1])
            count = state.sampling.prompt_logprobs or 0
            tops.append(self._model.candidates(state.prefix[position], count))
        has_tops = any(tops)
        return StepResult(
            step=plan.step,
            rows=rows,
            tokens=int32(tokens),
            logprobs=float32([0.0] * len(rows)),
            top_counts=int32([len(top) for top in tops]) if has_tops else int32(),
            top_tokens=int32([token for top in tops for token, _ in top]),
            top_logprobs=float32([logprob for top in tops for _, logprob in top]),
            spoiled_slots=self._found_spoiled,
        )

    def _scored_positions(self, plan: StepPlan) -> Iterator[tuple[int, int]]:
        """Rows and positions whose next prompt token is to be scored."""
        for row, start, count in zip(
            plan.prefill_rows, plan.prefill_starts, plan.prefill_counts, strict=True
        ):
            state = self._rows[row]
            if state.sampling is not None and state.sampling.prompt_logprobs is not None:
                end = min(start + count, state.prompt_len - 1)
                yield from ((row, position) for position in range(start, end))

    def _next_token(self, state: _Row) -> int:
        state.last_token = self._model.sample(state.prefix[-1], state.seed)
        return state.last_token

    def _candidates(self, row: int) -> list[tuple[int, float]]:
        state = self._rows[row]
        assert state.sampling is not None
        return self._model.candidates(state.prefix[-1], state.sampling.num_logprobs or 0)

    def _slot(self, row: int, position: int, group: int = 0) -> int:
        index, offset = divmod(position, self.capacity.block_size)
        block = self._rows[row].table.get(index * len(self.capacity.windows) + group)
        if block is None:
            raise InvariantViolated(f"row {row} has no block for {position}")
        return block * self.capacity.block_size + offset

    def _block(self, block: int) -> list[tuple[int, int]]:
        size = self.capacity.block_size
        return self._slots[block * size : (block + 1) * size]

    def _write_block(self, block: int, values: list[tuple[int, int]]) -> None:
        size = self.capacity.block_size
        for slot in range(block * size, (block + 1) * size):
            self._check_write(slot)
        self._slots[block * size : (block + 1) * size] = values

    @staticmethod
    def _require(condition: bool, message: str) -> None:
        if not condition:
            raise InvariantViolated(message)
