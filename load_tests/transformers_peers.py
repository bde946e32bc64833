"""transformers' own ways to generate, set up to be as fast as they can be on the same work."""

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


class Generate:
    """`model.generate`: one batch from start to end; prompts of one length, so nothing is padded."""

    def __init__(self, folder: Path, dtype: torch.dtype, cache: Literal["dynamic", "static"]):
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
            generation_config=_greedy(output_len),
            cache_implementation=self._cache,
        )
        tokens: list[list[int]] = output[:, input_ids.shape[1] :].tolist()
        return tokens


class ContinuousBatching:
    """`model.generate_batch` over its paged cache, with the settings that it chooses itself.

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
            prompts, generation_config=_greedy(output_len), persistent_manager=True
        )
        return [list(output.generated_tokens) for output in outputs.values()]

    def close(self) -> None:
        """End the manager's thread."""
        self._model.destroy_cached_continuous_batching_manager()


def _load(folder: Path, dtype: torch.dtype) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    # without an end token every answer has its full length, and no logits need masking
    model.generation_config.eos_token_id = None
    return model


def _greedy(output_len: int) -> GenerationConfig:
    # continuous batching means "no end token" by -1
    return GenerationConfig(
        max_new_tokens=output_len, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
