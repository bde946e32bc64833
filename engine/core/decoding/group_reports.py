"""What is reported of a group beside its tokens: cache hits, preemptions, blocks, each once.

No other module assigns to a field. Who calls what:

    SequenceGroup    note_cached_tokens, note_resumption, note_preemption
    Scheduler        note_blocks
    output           report_cached_tokens, report_preemptions, report_peak_blocks, end_news
"""

from dataclasses import dataclass


@dataclass(eq=False, slots=True, kw_only=True)
class GroupReports:
    """What `output` puts beside the next token of a group.

    Attributes:
        num_cached_tokens: prompt tokens that the prefix cache had when blocks were first allocated;
            -1 before.
        is_cache_reported: whether that has been reported.
        num_preemptions: times that it was preempted since its last output.
        most_blocks: most blocks that it has held at once, as far as it was noted.
        is_peak_reported: whether that has been reported.
        has_news: whether anything may be there to report; looked at for each token.
    """

    num_cached_tokens: int = -1
    is_cache_reported: bool = False
    num_preemptions: int = 0
    most_blocks: int = 0
    is_peak_reported: bool = True
    has_news: bool = False

    def note_cached_tokens(self, count: int) -> None:
        """Note what the prefix cache had of the prompt; only the first time counts."""
        if self.num_cached_tokens < 0:
            self.num_cached_tokens, self.has_news = count, True

    def note_resumption(self) -> None:
        """Note that another engine has reported what the cache had, with the first tokens."""
        self.num_cached_tokens = 0

    def note_preemption(self) -> None:
        """Note that the group leaves the batch because blocks ran out."""
        self.num_preemptions += 1
        self.has_news = True

    def note_blocks(self, count: int) -> None:
        """Note how many blocks the group holds, shared ones once."""
        if count > self.most_blocks:
            self.most_blocks, self.is_peak_reported = count, False
            self.has_news = True

    def report_cached_tokens(self) -> int:
        """Tokens found in the prefix cache, to be reported once."""
        assert not self.is_cache_reported
        self.is_cache_reported = True
        return self.num_cached_tokens

    def report_preemptions(self) -> int:
        """Preemptions that were not reported yet, and are now."""
        num_preemptions, self.num_preemptions = self.num_preemptions, 0
        return num_preemptions

    def report_peak_blocks(self) -> int:
        """The most blocks that the group has held, which is reported now."""
        self.is_peak_reported = True
        return self.most_blocks

    def end_news(self) -> None:
        """Note that all there was has been reported."""
        self.has_news = False
