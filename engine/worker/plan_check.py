"""Refuses plans whose numbers would index beyond a tensor, or that write one place twice."""

from dataclasses import dataclass
from typing import Any

from engine.errors import InvariantViolated
from engine.types import KEY_WORDS, IntColumn, RowAdmission, StepPlan, int32, int64

# a column is written in parallel: of two writes to one place either may win
_WRITTEN_ONCE = (
    "releases",
    "fork_children",
    "token_rows",
    "swap_out_destinations",
    "swap_in_destinations",
    "copy_destinations",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """Sizes of what the numbers of a plan index: each number is below its limit.

    Attributes:
        max_blocks: of a sequence, in all groups of layers.
        num_positions: tokens of the longest sequence.
    """

    num_rows: int
    num_blocks: int
    num_swap_blocks: int
    max_blocks: int
    num_positions: int
    vocab_size: int


def check_plan(plan: StepPlan, limits: PlanLimits) -> None:
    """Check every id of a plan before any tensor sees it.

    Raises:
        InvariantViolated: naming the column and the value; nothing has been changed.
    """
    _check_lengths(plan)
    _check_written_once(plan)
    for name, limit in (
        ("releases", limits.num_rows),
        ("fork_parents", limits.num_rows),
        ("fork_children", limits.num_rows),
        ("append_rows", limits.num_rows),
        ("append_indices", limits.max_blocks),
        ("append_blocks", limits.num_blocks),
        ("token_rows", limits.num_rows),
        ("token_values", limits.vocab_size),
        ("swap_out_sources", limits.num_blocks),
        ("swap_out_destinations", limits.num_swap_blocks),
        ("swap_in_sources", limits.num_swap_blocks),
        ("swap_in_destinations", limits.num_blocks),
        ("copy_sources", limits.num_blocks),
        ("copy_destinations", limits.num_blocks),
        ("decode_rows", limits.num_rows),
        ("prefill_rows", limits.num_rows),
        ("prefill_starts", limits.num_positions),
        ("prefill_tokens", limits.vocab_size),
        ("sibling_rows", limits.num_rows),
        ("sibling_parents", limits.num_rows),
    ):
        _check_range(plan, name, getattr(plan, name), limit)
    for admission in plan.admissions:
        _check_admission(plan, admission, limits)
    _check_chunks(plan, limits)


def _check_written_once(plan: StepPlan) -> None:
    columns: dict[str, list[Any]] = {name: list(getattr(plan, name)) for name in _WRITTEN_ONCE}
    columns["admissions"] = [admission.row for admission in plan.admissions]
    columns["appends"] = list(zip(plan.append_rows, plan.append_indices, strict=True))
    for name, places in columns.items():
        if len(set(places)) != len(places):
            raise InvariantViolated(f"step {plan.step}: {name} write one place twice: {places}")


def _check_range(plan: StepPlan, name: str, column: IntColumn, limit: int) -> None:
    if column and (min(column) < 0 or max(column) >= limit):
        raise InvariantViolated(
            f"step {plan.step}: {name} spans [{min(column)}, {max(column)}], beyond [0, {limit})"
        )


def _check_admission(plan: StepPlan, admission: RowAdmission, limits: PlanLimits) -> None:
    _check_range(plan, "admissions", int32([admission.row]), limits.num_rows)
    sampling, known_tokens = admission.sampling, admission.known_tokens
    _check_range(plan, "known_tokens", known_tokens, limits.vocab_size)
    if len(known_tokens) > limits.num_positions:
        raise InvariantViolated(
            f"step {plan.step}: {len(known_tokens)} known tokens, beyond {limits.num_positions}"
        )
    if sampling.changes_logits:
        bias_ids = [token for token, _ in sampling.logit_bias]
        _check_range(plan, "logit_bias", int64(bias_ids), limits.vocab_size)
        _check_range(
            plan, "allowed_token_ids", int64(sampling.allowed_token_ids), limits.vocab_size
        )
        for word in sampling.bad_words:
            _check_range(plan, "bad_words", int64(word), limits.vocab_size)


def _check_chunks(plan: StepPlan, limits: PlanLimits) -> None:
    for start, count in zip(plan.prefill_starts, plan.prefill_counts, strict=True):
        if count < 1 or start + count > limits.num_positions:
            raise InvariantViolated(
                f"step {plan.step}: {count} tokens from position {start} on are not in "
                f"[0, {limits.num_positions})"
            )


def _check_lengths(plan: StepPlan) -> None:
    rows = plan.decode_rows + plan.prefill_rows + plan.sibling_rows
    matches = (
        len(plan.append_rows) == len(plan.append_indices) == len(plan.append_blocks)
        and len(plan.fork_parents) == len(plan.fork_children)
        and len(plan.token_rows) == len(plan.token_values)
        and len(plan.swap_out_sources) == len(plan.swap_out_destinations)
        and len(plan.swap_out_keys) == KEY_WORDS * len(plan.swap_out_sources)
        and len(plan.swap_in_sources) == len(plan.swap_in_destinations)
        and len(plan.swap_in_keys) == KEY_WORDS * len(plan.swap_in_sources)
        and len(plan.copy_sources) == len(plan.copy_destinations)
        and len(plan.sibling_rows) == len(plan.sibling_parents)
        and len(plan.prefill_rows) == len(plan.prefill_starts) == len(plan.prefill_counts)
        and len(plan.prefill_rows) == len(plan.prefill_samples)
        and sum(plan.prefill_counts) == len(plan.prefill_tokens)
    )
    if not matches or len(set(rows)) != len(rows):
        raise InvariantViolated(f"step {plan.step}: columns differ in length, or a row comes twice")
