"""How long a step takes: what it computes, and a constant for each of these things."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step computes.

    Attributes:
        new_tokens: tokens fed for each sequence, decodes first.
        contexts: positions of each sequence after the step.
        num_decodes: sequences that are fed the token they sampled last.
        num_copied_blocks, num_swapped_blocks: inside the pool, and to or from the swap space.
    """

    new_tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    num_decodes: int
    num_copied_blocks: int = 0
    num_swapped_blocks: int = 0

    @classmethod
    def alike(cls, num_decodes: int, context: int, num_prompt_tokens: int = 0) -> "StepWork":
        """Decodes with the same context each, beside one whole prompt if it has tokens."""
        prompts = (num_prompt_tokens,) if num_prompt_tokens else ()
        return cls(
            new_tokens=(1,) * num_decodes + prompts,
            contexts=(context,) * num_decodes + prompts,
            num_decodes=num_decodes,
        )

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of prompts that are fed."""
        return sum(self.new_tokens[self.num_decodes :])

    @property
    def num_decode_positions(self) -> int:
        """Positions of all decodes."""
        return sum(self.contexts[: self.num_decodes])

    def num_pairs(self, first: int = 0, window: int = 0) -> float:
        """Pairs of a new token and a position it attends to, of sequences from `first` on.

        Args:
            window: the most positions that a token attends to; 0 for all.
        """
        # the j-th of q new tokens attends to context - q + j positions
        pairs = 0.0
        for new, context in zip(self.new_tokens[first:], self.contexts[first:], strict=True):
            pairs += new * (context - (new - 1) / 2)
            if window:
                # of the last tokens each leaves out one more
                most, cut = context - window, min(new, max(0, context - window))
                pairs -= cut * (most - (cut - 1) / 2)
        return pairs

    def num_positions(self, window: int = 0) -> int:
        """Positions whose keys and values are read by tokens that attend to so many; 0 for all."""
        if not window:
            return sum(self.contexts)
        reads = zip(self.new_tokens, self.contexts, strict=True)
        return sum(min(context, window + new - 1) for new, context in reads)


class StepTime(Protocol):
    """A model of the workers' speed."""

    def seconds(self, work: StepWork) -> float:
        """Predict the time of a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepTime:
    """A constant for each thing a step does; weights are streamed while tokens are computed.

    Attributes:
        weights_s: least time of the matrices, however few tokens there are.
        token_s: per token in the matrices.
        context_token_s: per position that a sequence's attention reads.
        step_s, sequence_s: of everything else, once and for each sequence.
        copied_block_s, swapped_block_s: per block.
    """

    weights_s: float
    token_s: float
    context_token_s: float
    step_s: float
    sequence_s: float
    copied_block_s: float = 0.0
    swapped_block_s: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        return (
            max(self.weights_s, self.token_s * sum(work.new_tokens))
            + self.context_token_s * sum(work.contexts)
            + self.step_s
            + self.sequence_s * len(work.contexts)
            + self.copied_block_s * work.num_copied_blocks
            + self.swapped_block_s * work.num_swapped_blocks
        )


# OPT-13B on the paper's A100 40 GB with the software of 2023. weights_s: 25.7 GB at 85 % of
# 1.555 TB/s. step_s and sequence_s are fitted by hand to the batch sizes of the paper's figure 13
# by Little's law, so these sizes of the paged system are no prediction. Blocks of 12.5 MiB move
# twice through the memory at 1.555 TB/s, and at 25 GB/s to the host (PCIe 4.0).
A100_OPT_13B = LinearStepTime(
    weights_s=19.4e-3,
    token_s=0.127e-3,
    context_token_s=0.9e-6,
    step_s=8e-3,
    sequence_s=0.27e-3,
    copied_block_s=17e-6,
    swapped_block_s=0.52e-3,
)


@dataclass(frozen=True, slots=True)
class WithBlockCopies:
    """Adds the time of copied and swapped blocks to a model that does not include them.

    Attributes:
        is_beside: whether swapped blocks are copied while the device computes, so that the longer
            of both counts: what a step needs is brought in while the one before it runs, which
            takes about as long.
    """

    step_time: StepTime
    copied_block_s: float
    swapped_block_s: float
    is_beside: bool = False

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        own_s = self.step_time.seconds(work) + self.copied_block_s * work.num_copied_blocks
        swaps_s = self.swapped_block_s * work.num_swapped_blocks
        return max(own_s, swaps_s) if self.is_beside else own_s + swaps_s


class PaddedBatches:
    """Steps of batches that are rectangles, as FasterTransformer computes them.

    Prompts are padded to the longest, and a sequence that has ended is computed on until the last
    one of its batch ends. A step without decodes starts a new batch (see `BatchGate`).
    """

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self._size = 0
        self._width = 0

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        is_start = work.num_decodes == 0
        self._size = len(work.contexts) if is_start else max(self._size, len(work.contexts))
        self._width = max(work.contexts) if is_start else self._width + 1
        return self._step_time.seconds(
            StepWork(
                new_tokens=(max(work.new_tokens),) * self._size,
                contexts=(self._width,) * self._size,
                num_decodes=0 if is_start else self._size,
                num_copied_blocks=work.num_copied_blocks,
                num_swapped_blocks=work.num_swapped_blocks,
            )
        )
