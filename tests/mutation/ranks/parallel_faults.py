"""Faults of how a model is split over ranks, and of how ranks meet."""

from engine.model.parallel import TensorParallel, store_at
from engine.model.peer_memory import _reason_against
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
        what="how deterministic rows are summed depends on their number",
        function=TensorParallel.row_sums_of,
        old="sums.fits(x) if is_deterministic else sums.is_fastest(x)",
        new="sums.is_fastest(x)",
        noticed_by="test_deterministic_rows_are_summed_in_one_way_however_many_there_are",
    ),
    Fault(
        what="ranks of several nodes share memory",
        function=_reason_against,
        old="not is_one_node",
        new="False",
        noticed_by="test_the_log_says_why_nccl_sums_everything",
    ),
    Fault(
        what="a rank of an earlier gang meets those of a later one",
        function=store_at,
        old="PrefixStore(url.path, store)",
        new="store",
        noticed_by="test_a_rank_of_an_earlier_gang_finds_nobody",
    ),
]
