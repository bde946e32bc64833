"""Warm-up: steps of made-up sequences before the first request.

They show how much memory a step takes, from which the size of the KV pool follows, and have
kernels compiled that requests would otherwise wait for.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.integers import div_ceil
from engine.model.model import Model, run_model
from kernels.backend import KernelBackend
from kernels.batch import BatchLayout, SamplingColumns

logger = logging.getLogger(__name__)

# numbers of tokens for which matrix products take different kernels
_NUM_TOKENS = (8, 24, 48, 96, 192)
# the same for experts, where they depend on the tokens of each
_NUM_MIXED_TOKENS = (1, *_NUM_TOKENS, 384, 768, 1536, 3072)


class WarmUp:
    """Runs a model on a KV pool of one block, which is read and never written."""

    def __init__(self, config: EngineConfig, backend: KernelBackend, model: Model) -> None:
        self._config, self._backend, self._model = config, backend, model
        self._device = backend.device
        self._kv = torch.zeros((1, *config.block_shape), dtype=backend.dtype, device=self._device)

    def prefill(self) -> None:
        """Prefill prompts that fill the largest step, and choose a token for every row."""
        self._step(self._chunks(self._config.scheduler.max_step_tokens))

    def prefill_beside(self) -> None:
        """Do the same with the most that a step has beside other requests."""
        self._step(self._chunks(self._config.scheduler.max_num_batched_tokens))

    def decode(self) -> None:
        """Decode with every row."""
        num_rows = self._config.max_num_seqs
        self._step([1] * num_rows, num_decodes=num_rows)

    def compile_kernels(self) -> None:
        """Run each kernel that a request may need, so that no request waits for the compiler."""
        started_s = time.perf_counter()
        sizes = self._sizes()
        total = 2 * len(sizes)
        for first, is_deterministic in ((1, False), (1 + len(sizes), True)):
            for done, num_tokens in enumerate(sizes, start=first):
                counts = [1, *self._chunks(num_tokens - 1)]
                # prompts that are scored want the logits of all of their tokens
                logits = self._step(
                    counts,
                    num_decodes=1,
                    num_logits=num_tokens,
                    is_deterministic=is_deterministic,
                )
                self._choose_in_every_way(logits[:1])
                self._look_up(logits)
                logger.info(
                    "kernels_compiled done=%d of=%d tokens=%d deterministic=%s s=%.1f",
                    done,
                    total,
                    num_tokens,
                    is_deterministic,
                    time.perf_counter() - started_s,
                )

    def _sizes(self) -> Sequence[int]:
        """Numbers of tokens to run, each of which takes kernels that others do not."""
        if self._config.model.spec.experts is None:
            return _NUM_TOKENS
        budget = self._config.scheduler.max_step_tokens
        return [size for size in _NUM_MIXED_TOKENS if size <= max(budget, _NUM_TOKENS[-1])]

    def _chunks(self, num_tokens: int) -> list[int]:
        """Split tokens into prompts of the longest length, and a shorter one for the rest."""
        longest = self._config.scheduler.max_model_len
        rest = [num_tokens % longest] if num_tokens % longest else []
        return [longest] * (num_tokens // longest) + rest

    @torch.inference_mode()
    def _step(
        self,
        counts: list[int],
        *,
        num_decodes: int = 0,
        num_logits: int | None = None,
        is_deterministic: bool = False,
    ) -> Tensor:
        """Run one step.

        Args:
            counts: tokens of each sequence, all of them new.
            num_decodes: leading sequences that are laid out as decodes.
            num_logits: first tokens whose logits are wanted; None for as many as there are rows.

        Returns:
            Logits of the first tokens.
        """
        config, device = self._config, self._device
        num_tokens = sum(counts)
        if num_logits is None:
            num_logits = min(config.max_num_seqs, num_tokens)
        max_blocks = div_ceil(config.scheduler.max_model_len, config.block_size)
        context_lens = torch.tensor(counts, dtype=torch.int32, device=device)
        starts = torch.tensor([0, *counts], dtype=torch.int32, device=device).cumsum(0).int()
        positions = torch.cat([torch.arange(count, device=device) for count in counts])
        layout = BatchLayout(
            num_decodes=0 if is_deterministic else num_decodes,
            positions=positions,
            slot_mapping=torch.full((num_tokens,), -1, dtype=torch.int64, device=device),
            block_tables=torch.zeros((len(counts), max_blocks), dtype=torch.int32, device=device),
            context_lens=context_lens,
            query_starts=starts,
            max_context_len=max(counts),
            max_query_len=max(counts),
            logit_indices=torch.arange(num_logits, device=device),
            is_deterministic=is_deterministic,
        )
        others = (layout,) * (config.model.kv_groups.count - 1)
        layout = replace(layout, others=others)
        tokens = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        layout = self._backend.prepare(layout, self._kv, self._model.windows)
        logits = run_model(self._model, tokens, self._kv, layout)
        self._backend.sample(logits, _columns(num_logits, device))
        return logits

    @torch.inference_mode()
    def _choose_in_every_way(self, logits: Tensor) -> None:
        """Run every combination of the flags that decide which kernels choose tokens."""
        columns = _columns(len(logits), self._device)
        for num_logprobs in (-1, 0, 20):
            wanted = replace(columns, num_logprobs=num_logprobs)
            self._backend.sample(logits, wanted)
            self._backend.sample(logits, replace(wanted, any_filter=False))
            self._backend.sample(logits, replace(wanted, any_filter=False, all_greedy=True))
        # as rows with rules are chosen, by graphs and kernel by kernel
        scores = logits.float()
        masks = torch.full((len(scores), div_ceil(scores.shape[1], 32)), -1, dtype=torch.int32)
        masks = masks.to(self._device)
        self._backend.mask_tokens(scores, masks)
        ruled = replace(columns, num_logprobs=-1)
        places = torch.arange(len(scores), dtype=torch.int32, device=self._device)
        self._backend.sample_masked(logits, ruled, masks, places)
        greedy = replace(ruled, any_filter=False, all_greedy=True)
        self._backend.sample_masked(logits, greedy, masks, places)
        self._backend.sample(scores, ruled)
        self._backend.sample(scores, replace(ruled, any_filter=False))
        self._backend.sample(scores, replace(ruled, any_filter=False, all_greedy=True))

    @torch.inference_mode()
    def _look_up(self, logits: Tensor) -> None:
        """Look up log-probabilities of known tokens, as rows with rules and scored prompts do.

        The logits of a prompt follow those of rows that choose, so they may begin at any byte
        where those begin at a border of 16, for which other kernels are compiled.
        """
        for row in (logits[:1], logits[1:2]):
            for num_logprobs in (0, 20):
                known = torch.zeros(1, dtype=torch.int64, device=self._device)
                self._backend.report_logprobs(known, row, num_logprobs)


def _columns(num_rows: int, device: torch.device) -> SamplingColumns:
    """Rows that draw, use every filter and want log-probabilities."""
    ones: Tensor = torch.ones(num_rows, dtype=torch.float32, device=device)
    return SamplingColumns(
        temperature=ones,
        top_p=0.9 * ones,
        min_p=0.1 * ones,
        top_k=ones.int() * 50,
        seeds=ones.long(),
        positions=ones.long(),
        num_logprobs=20,
        all_greedy=False,
        any_filter=True,
    )
