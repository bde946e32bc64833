"""Which steps are measured for a table of step times."""

from dataclasses import dataclass

from engine.config import Device
from engine.integers import div_ceil
from engine.worker.graphs.graph_batch import decode_sizes, mixed_shapes

# the first steps of a batch find cold caches
WARM_UP_STEPS = 3
# at first, of the sequences that decode beside prompts: what prompts add hardly depends on it
MIXED_CONTEXT = 48
# Contexts of a batch differ by so many tokens either way, as they do wherever requests differ:
# attention to equal ones is divided otherwise (`kernels.triton.attention.shares`), and is faster.
SPREAD = 64
# prompts are computed in pieces, as a model may know fewer positions than a step has tokens
PIECE_LEN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """What is measured; all axes increase.

    Attributes:
        batches, contexts: of steps that only decode; a context is left out where the pool is full,
            or the sequences would grow beyond the model's last position.
        prompt_lens: tokens of prompts, by themselves and beside `mixed_batches` decodes.
        mixed_batches: may be empty.
        brief_batches: those of `batches` that are measured with the first two contexts only.
        padded_len, padded_batch: see `MixedTimes`.
        sizes: see `WithFilledBatches`.
        shared_len: of a common prefix whose cost is measured; 0 for none.
        n, beam_width: how requests decode, see `SamplingParams`; batches are multiples of n.
        repeats: steps per point.
        num_mixed: steps with prompts beside decodes, per point.
        rounds: times that everything is measured, one after the other; the least counts. A host
            that is busy for a while slows steps that wait for it by a tenth.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompt_lens: tuple[int, ...]
    mixed_batches: tuple[int, ...] = ()
    brief_batches: tuple[int, ...] = ()
    padded_len: int = 0
    padded_batch: int = 0
    sizes: tuple[int, ...] = ()
    shared_len: int = 0
    n: int = 1
    beam_width: int = 0
    repeats: int = 12
    num_mixed: int = 4
    rounds: int = 1

    @property
    def budget(self) -> int:
        """Tokens of the largest step."""
        return max(self.prompt_lens) + max(self.batches)

    @property
    def num_rows(self) -> int:
        """Sequences of the largest step."""
        return max(self.batches) + self.n * div_ceil(max(self.prompt_lens), PIECE_LEN)

    @property
    def mixed_steps(self) -> int:
        """All steps of such a point: the first prompts are not counted, and decodes follow."""
        return (1 + self.num_mixed) * 2 + self.num_mixed

    def longest(self, max_position: int) -> int:
        """Positions of the longest sequence that is needed, as far as the model has them."""
        context = max(self.contexts)
        num_prefills = div_ceil(max(self.batches) * context, max(self.prompt_lens))
        by_itself = context + SPREAD + num_prefills + WARM_UP_STEPS + self.repeats + 1
        beside = 2 * MIXED_CONTEXT + WARM_UP_STEPS + (1 + len(self.prompt_lens)) * self.mixed_steps
        prompt_len = min(max(self.prompt_lens), PIECE_LEN) + 1
        return min(max_position, max(by_itself, beside, prompt_len))


# the sizes that the engine makes graphs for, and the first beyond, where each kernel is launched
_GPU_MIXED = mixed_shapes(256, 2560)
_GPU_LENS = tuple(sorted({shape.num_prompt_tokens for shape in _GPU_MIXED}))
# Matrix products take other kernels, or more tiles of rows, from 33, 65, 97, 129 and 193 rows on:
# the graphs just beyond. The others are graphs with prompts.
_GPU_BRIEF = (16, 40, 72, 96, 104, 144, 192, 208)
DEFAULT_POINTS: dict[Device, Points] = {
    "cpu": Points(
        batches=(1, 4, 16, 32),
        contexts=(64, 256, 1024),
        prompt_lens=(16, 64, 256, 1024),
        mixed_batches=(4, 32),
        rounds=2,
    ),
    "cuda": Points(
        batches=tuple(sorted((1, 8, 32, 64, 128, 256, *_GPU_BRIEF))),
        contexts=(32, 128, 512, 1900, 2048),
        prompt_lens=(*_GPU_LENS, _GPU_LENS[-1] + 1, 2560),
        mixed_batches=tuple(sorted({shape.num_decodes for shape in _GPU_MIXED})),
        brief_batches=_GPU_BRIEF,
        padded_len=_GPU_LENS[-1],
        padded_batch=256,
        sizes=tuple(decode_sizes(256)),
        shared_len=512,
        num_mixed=6,
    ),
}
