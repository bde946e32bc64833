"""Faults of the rows of a batch and of their tokens."""

from engine.worker.row_table import RowParameters, RowTable, _or_minus_one, _signed
from engine.worker.token_history import TokenHistory
from tests.mutation.mutant import Fault

ROW_FAULTS = [
    Fault(
        what="a fork gives the parent the block table of the child",
        function=RowTable.fork,
        old="self.block_tables[to_rows] = self.block_tables[from_rows]",
        new="self.block_tables[from_rows] = self.block_tables[to_rows]",
        noticed_by="test_a_fork_copies_length_block_table_and_tokens_of_the_parent",
    ),
    Fault(
        what="a fork begins without a length",
        function=RowTable.fork,
        old="self.lengths[children] = self.lengths[parents]",
        new="pass",
        noticed_by="test_a_fork_copies_length_block_table_and_tokens_of_the_parent",
    ),
    Fault(
        what="a fork does not know the tokens of its parent",
        function=RowTable.fork,
        old="self.history.fork(parents, children)",
        new="pass",
        noticed_by="test_a_fork_copies_length_block_table_and_tokens_of_the_parent",
    ),
    Fault(
        what="a released row stays in use",
        function=RowTable.release,
        old="self.lengths[rows] = _FREE",
        new="pass",
        noticed_by="test_a_released_row_is_free_to_be_admitted_again",
    ),
    Fault(
        what="a free row is released without complaint",
        function=RowTable.release,
        old="(self.lengths[rows] == _FREE).any()",
        new="False",
        noticed_by="test_a_free_row_is_not_released_and_a_row_in_use_not_admitted",
    ),
    Fault(
        what="a row in use is admitted without complaint",
        function=RowTable.admit,
        old="(self.lengths[rows] != _FREE).any()",
        new="False",
        noticed_by="test_a_free_row_is_not_released_and_a_row_in_use_not_admitted",
    ),
    Fault(
        what="a row that comes back from the swap space begins at 0",
        function=RowTable.admit,
        old="[admission.length for admission in admissions]",
        new="0",
        noticed_by="test_an_admitted_row_begins_with_the_length_that_is_computed_already",
    ),
    Fault(
        what="all choices of a request draw with one seed",
        function=RowParameters.set,
        old="a.sampling.seed + a.choice",
        new="a.sampling.seed",
        noticed_by="test_parameters_of_a_row_reach_the_device",
    ),
    Fault(
        what="min_p is no filter",
        function=RowParameters.set,
        old=" or v.min_p > 0",
        new="",
        noticed_by="test_what_rows_want_is_known_on_the_host",
    ),
    Fault(
        what="parameters of two rows are exchanged",
        function=RowParameters.set,
        old="self.temperature[where], self.top_p[where] = temperature, top_p",
        new="self.temperature[where], self.top_p[where] = temperature.flip(0), top_p",
        noticed_by="test_parameters_of_a_row_reach_the_device",
    ),
    Fault(
        what="temperatures are not gathered where a row draws",
        function=RowParameters.columns,
        old="gather(self.temperature, not all_greedy)",
        new="gather(self.temperature, all_greedy)",
        noticed_by="test_only_what_the_flags_ask_for_is_gathered",
    ),
    Fault(
        what="log-probabilities without alternatives are none",
        function=_or_minus_one,
        old="-1 if count is None else count",
        new="count or -1",
        noticed_by="test_what_rows_want_is_known_on_the_host",
    ),
    Fault(
        what="the upper half of the seeds is capped",
        function=_signed,
        old="(seed + (1 << 63)) % (1 << 64) - (1 << 63)",
        new="min(seed, (1 << 63) - 1)",
        noticed_by="test_a_seed_keeps_its_lower_64_bits",
    ),
    Fault(
        what="a row keeps the history that its last sequence asked for",
        function=TokenHistory.admit,
        old="] = admission.sampling",
        new="] |= admission.sampling",
        noticed_by="test_a_row_is_kept_no_longer_than_its_sequence",
    ),
    Fault(
        what="known tokens begin at position 1",
        function=TokenHistory.admit,
        old=", : len(known)]",
        new=", 1 : len(known) + 1]",
        noticed_by="test_known_tokens_are_taken_over_from_the_first_position_on",
    ),
    Fault(
        what="a fork overwrites the tokens of its parent",
        function=TokenHistory.fork,
        old="self.tokens[to_rows] = self.tokens[from_rows]",
        new="self.tokens[from_rows] = self.tokens[to_rows]",
        noticed_by="test_a_child_gets_the_tokens_of_its_parent",
    ),
    Fault(
        what="a token is noted one position late",
        function=TokenHistory.note,
        old="positions[where]",
        new="positions[where] + 1",
        noticed_by="test_a_token_is_noted_at_its_position_where_its_row_is_kept",
    ),
    Fault(
        what="tokens are noted in the order of the batch instead of their rows",
        function=TokenHistory.note,
        old="] = tokens[where]",
        new="] = tokens[: len(where)]",
        noticed_by="test_a_token_is_noted_at_its_position_where_its_row_is_kept",
    ),
]
