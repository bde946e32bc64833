"""Faults of vectors made from hidden states."""

from engine.worker.sampling.pooling import Pooler
from tests.mutation.mutant import Fault

POOLING_FAULTS = [
    Fault(
        what="a mean forgets the chunks before the last",
        function=Pooler._add_chunks,
        old="total += self._sums[row]",
        new="pass",
        noticed_by="test_vectors_equal_transformers",
    ),
    Fault(
        what="a mean goes on with the sum of a row's last prompt",
        function=Pooler._add_chunks,
        old="if spans.starts[index]:",
        new="if row in self._sums:",
        noticed_by="test_a_prompt_that_is_aborted_leaves_nothing_in_the_mean_of_the_next",
    ),
    Fault(
        what="the vector is that of the first token that was fed",
        function=Pooler.pool,
        old="hidden[int(end)]",
        new="hidden[0]",
        noticed_by="test_vectors_equal_transformers",
    ),
]
