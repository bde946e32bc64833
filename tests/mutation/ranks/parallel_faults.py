"""Faults of how a model is split over ranks, and of how ranks meet."""

from engine.model.parallel import TensorParallel, store_at
from tests.mutation.mutant import Fault

PARALLEL_FAULTS = [
    Fault(
        what="ranks that share a key-value head take turns instead of neighbours",
        function=TensorParallel.span,
        old="self.rank * num_heads // self.size",
        new="self.rank % num_heads",
        noticed_by="test_a_rank_holds_the_key_value_heads_of_its_queries",
    ),
    Fault(
        what="fewer key-value heads than ranks are split",
        function=TensorParallel.span,
        old="num_heads is None or num_heads >= self.size",
        new="True",
        noticed_by="test_a_rank_holds_the_key_value_heads_of_its_queries",
    ),
    Fault(
        what="a rank of an earlier gang meets those of a later one",
        function=store_at,
        old="PrefixStore(url.path, store)",
        new="store",
        noticed_by="test_a_rank_of_an_earlier_gang_finds_nobody",
    ),
]
