"""Faults of how a worker checks a plan and carries it out."""

from engine.worker.model_runner import ModelRunner
from engine.worker.plan_check import (
    _check_admission,
    _check_chunks,
    _check_lengths,
    _check_range,
    _check_written_once,
    check_plan,
)
from engine.worker.worker import Worker
from tests.mutation.mutant import Fault

PLAN_FAULTS = [
    Fault(
        what="tokens beyond the vocabulary reach the model",
        function=check_plan,
        old='("prefill_tokens", limits.vocab_size),',
        new="",
        noticed_by="test_tokens_out_of_the_vocabulary_are_refused",
    ),
    Fault(
        what="a block table is written behind its end",
        function=check_plan,
        old='("append_indices", limits.max_blocks)',
        new='("append_indices", limits.num_blocks)',
        noticed_by="test_ids_out_of_range_are_named",
    ),
    Fault(
        what="slots of the swap space are checked as blocks",
        function=check_plan,
        old='("swap_in_sources", limits.num_swap_blocks)',
        new='("swap_in_sources", limits.num_blocks)',
        noticed_by="test_pairs_out_of_range_or_of_different_length_are_refused",
    ),
    Fault(
        what="the id behind the last one passes",
        function=_check_range,
        old="max(column) >= limit",
        new="max(column) > limit",
        noticed_by="test_ids_out_of_range_are_named",
    ),
    Fault(
        what="ids below 0 pass",
        function=_check_range,
        old="min(column) < 0 or ",
        new="",
        noticed_by="test_ids_out_of_range_are_named",
    ),
    Fault(
        what="a row that comes twice passes",
        function=_check_lengths,
        old=" or len(set(rows)) != len(rows)",
        new="",
        noticed_by="test_a_row_that_decodes_and_is_born_at_once_is_refused",
    ),
    Fault(
        what="a chunk reaches beyond the longest sequence",
        function=_check_chunks,
        old="start + count > limits",
        new="start > limits",
        noticed_by="test_chunks_out_of_the_context_are_refused",
    ),
    Fault(
        what="an empty chunk passes",
        function=_check_chunks,
        old="count < 1",
        new="count < 0",
        noticed_by="test_chunks_out_of_the_context_are_refused",
    ),
    Fault(
        what="two blocks are written to one place of a table",
        function=_check_written_once,
        old='columns["appends"] = list(zip(plan.append_rows, plan.append_indices, strict=True))',
        new="pass",
        noticed_by="test_what_would_be_written_twice_is_refused",
    ),
    Fault(
        what="known tokens beyond the longest sequence pass",
        function=_check_admission,
        old="len(known_tokens) > limits.num_positions",
        new="False",
        noticed_by="test_known_tokens_beyond_the_vocabulary_or_the_context_are_refused",
    ),
    Fault(
        what="a swapped block without a key passes",
        function=_check_lengths,
        old="len(plan.swap_out_keys) == KEY_WORDS * len(plan.swap_out_sources)",
        new="True",
        noticed_by="test_every_swapped_block_has_a_key",
    ),
    Fault(
        what="what was swapped in is not reported",
        function=Worker.enqueue,
        old="pending.swapped_in(plan.swap_in_sources, arriving.is_spoiled())",
        new="pass",
        noticed_by="test_a_block_that_was_changed_in_the_swap_space_is_reported",
    ),
    Fault(
        what="a plan is not checked",
        function=Worker.enqueue,
        old="check_plan(plan, self._limits)",
        new="pass",
        noticed_by="test_a_plan_that_reaches_beyond_the_pool_changes_nothing",
    ),
    Fault(
        what="a token that a plan gives a row is dropped",
        function=Worker._change_rows,
        old="table.last_tokens[rows] = tokens",
        new="pass",
        noticed_by="test_a_row_goes_on_with_the_token_that_a_plan_gives_it",
    ),
    Fault(
        what="rows that fork take their own state for that of the parent",
        function=Worker._change_rows,
        old="np.asarray(plan.fork_parents), np.asarray(plan.fork_children)",
        new="np.asarray(plan.fork_children), np.asarray(plan.fork_parents)",
        noticed_by="test_a_forked_row_goes_on_as_its_parent_would",
    ),
    Fault(
        what="rows are released after others were admitted to them",
        function=Worker._change_rows,
        old=(
            "if plan.releases:\n"
            "        table.release(np.asarray(plan.releases))\n"
            "    if plan.admissions:\n"
            "        table.admit(plan.admissions)"
        ),
        new=(
            "if plan.admissions:\n"
            "        table.admit(plan.admissions)\n"
            "    if plan.releases:\n"
            "        table.release(np.asarray(plan.releases))"
        ),
        noticed_by="test_row_released_and_admitted_in_one_plan_starts_anew",
    ),
    Fault(
        what="siblings keep their old length",
        function=ModelRunner.run,
        old="table.lengths[batch.sampled.rows] = batch.sampled.positions",
        new="pass",
        noticed_by="test_a_sibling_goes_on_behind_the_prompt_of_its_parent",
    ),
    Fault(
        what="rows do not grow",
        function=ModelRunner.run,
        old="table.lengths[batch.spans.rows] = batch.spans.ends",
        new="pass",
        noticed_by="test_a_row_is_as_long_as_what_was_computed_of_it",
    ),
    Fault(
        what="tokens that were fed are not noted",
        function=ModelRunner._choose_ruled,
        old="history.note(batch.token_rows, ",
        new="history.note(batch.token_rows[:0], ",
        noticed_by="test_rules_know_the_tokens_that_were_fed",
    ),
    Fault(
        what="the only block of a pool is copied to the one behind it",
        function=Worker._warm_up_copy,
        old="if self.pool.num_blocks > 1:",
        new="if True:",
        noticed_by="test_a_pool_of_one_block_has_no_block_to_copy_before_the_start",
    ),
]
