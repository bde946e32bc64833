"""Faults of what a model computes, and of what of a config.json is taken as known."""

from engine.architectures.fields import Fields
from engine.model.decoder import Decoder
from engine.model.rope import head_order, query_factors
from tests.mutation.mutant import Fault

MODEL_FAULTS = [
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
