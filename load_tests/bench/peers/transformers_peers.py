"""transformers' own ways to generate, set up to be as fast as they can be on the same work."""

import logging
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from engine.integers import div_ceil

# tokens per page, the default of its continuous batching
PAGE_SIZE = 256
# larger steps gain nothing on one CPU thread
MAX_BATCH_TOKENS = 512


class Generate:
    """`model.generate`: one batch from start to end, prompts of one length, no padding."""

    def __init__(
        self, folder: Path, dtype: torch.dtype, cache: Literal["dynamic", "static"]
    ) -> None:
        self.name = f"generate, {cache} cache"
        self._model = _load(folder, dtype)
        self._cache = cache

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts by exactly `output_len` greedy tokens each."""
        input_ids = torch.tensor(prompts)
        output = self._model.generate(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            generation_config=_greedy(output_len, cache_implementation=self._cache),
        )
        tokens: list[list[int]] = output[:, input_ids.shape[1] :].tolist()
        return tokens


class ContinuousBatching:
    """`model.generate_batch` over a paged cache that just holds the batch.

    A cache of the size that it would choose itself, most of the memory, halves its speed.
    The manager is kept between calls, so that its allocation and warm-up are not counted.
    """

    name = "continuous batching"

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._model = _load(folder, dtype)
        self._sized_for = (0, 0, 0)

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts by exactly `output_len` greedy tokens each."""
        size = (len(prompts), len(prompts[0]), output_len)
        if size != self._sized_for:
            self._model.destroy_cached_continuous_batching_manager()
            self._sized_for = size
        outputs = self._model.generate_batch(
            prompts,
            # here -1 means "no end token"
            generation_config=_greedy(output_len, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=2 + len(prompts) * div_ceil(size[1] + output_len, PAGE_SIZE),
                max_batch_tokens=MAX_BATCH_TOKENS,
                page_size=PAGE_SIZE,
            ),
            persistent_manager=True,
        )
        return [list(output.generated_tokens) for output in outputs.values()]

    def close(self) -> None:
        """End the manager's thread."""
        self._model.destroy_cached_continuous_batching_manager()


def _load(folder: Path, dtype: torch.dtype) -> Any:
    # its notes on what it does are no part of the result
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.eval()
    # without an end token every answer has its full length, and no logits need masking
    model.generation_config.eos_token_id = None
    return model


def _greedy(output_len: int, **options: Any) -> Any:
    return transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=output_len, do_sample=False, pad_token_id=0, **options
    )
