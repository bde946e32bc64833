"""Faults of what a model computes, and of what of a config.json is taken as known."""

from engine.architectures.fields import Fields
from engine.model.decoder import Decoder
from engine.model.mixtures.experts import _read_matrices
from engine.model.rope import head_order, query_factors
from kernels.looped_experts import LoopedExperts, choose_experts
from tests.mutation.mutant import Fault

MODEL_FAULTS = [
    Fault(
        what="the bias that experts are chosen by counts in their weights",
        function=choose_experts,
        old="scores.gather(1, ids)",
        new="ranks.gather(1, ids)",
        noticed_by="test_a_bias_changes_the_choice_and_no_weight",
    ),
    Fault(
        what="experts outside the best groups are chosen",
        function=choose_experts,
        old="ranks = _within_groups(ranks, routing)",
        new="pass",
        noticed_by="test_experts_are_chosen_within_the_groups_whose_two_best_are_best",
    ),
    Fault(
        what="each rank runs the experts of the first one",
        function=LoopedExperts.__call__,
        old="ids - routing.first_expert",
        new="ids - 0",
        noticed_by="test_ranks_that_hold_some_experts_add_up_to_all",
    ),
    Fault(
        what="all ranks hold the first rows of each expert",
        function=_read_matrices,
        old="start = share.rows.start",
        new="start = 0",
        noticed_by="test_ranks_with_rows_of_each_expert_compute_what_one_does",
    ),
    Fault(
        what="a field that nobody knows is ignored",
        function=Fields.refuse_unread,
        old="raise ConfigError(",
        new="str(",
        noticed_by="test_what_no_reader_knows_is_refused",
    ),
    Fault(
        what="a field that must have one value may have any",
        function=Fields.refuse_unread,
        old="self.require(name, NEUTRAL[name])",
        new="pass",
        noticed_by="test_what_no_reader_knows_is_refused",
    ),
    Fault(
        what="a layer with a window attends to all",
        function=Decoder.__init__,
        old="spec.window(index, num_positions)",
        new="0",
        noticed_by="test_every_logit_equals_transformers",
    ),
    Fault(
        what="a norm behind a layer is left out",
        function=Decoder._pass_on,
        old="x = after(x)",
        new="pass",
        noticed_by="test_every_logit_equals_transformers",
    ),
    Fault(
        what="neighbours turn with others",
        function=head_order,
        old="turning[0::2]",
        new="turning[: rotary_dim // 2]",
        noticed_by="test_heads_are_laid_out_in_halves_that_turn_together",
    ),
    Fault(
        what="queries grow from the first position on",
        function=query_factors,
        old="torch.arange(num_positions) // rope.original_max_position",
        new="torch.arange(num_positions) / rope.original_max_position",
        noticed_by="test_queries_grow_beyond_the_trained_context_only",
    ),
]
