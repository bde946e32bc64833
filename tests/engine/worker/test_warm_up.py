"""Steps that are run before there are requests."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.model.loader import load_model
from engine.model.model import Model
from engine.model.parallel import TensorParallel
from engine.worker.warm_up import WarmUp
from kernels.batch import BatchLayout, Sampled, SamplingColumns
from kernels.reference import ReferenceBackend
from tests.engine.model.tiny import TinyModel


@dataclass
class _WatchedModel:
    """Keeps the layouts of its batches, the pool that they read, and how many logits it gave."""

    model: Model
    layouts: list[BatchLayout] = field(default_factory=list)
    pools: list[Tensor] = field(default_factory=list)
    num_logits: list[int] = field(default_factory=list)

    @property
    def num_kv_heads(self) -> int:
        return self.model.num_kv_heads

    @property
    def windows(self) -> tuple[int, ...]:
        return (0,)

    def hidden(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        self.layouts.append(layout)
        self.pools.append(kv)
        return self.model.hidden(tokens, kv, layout)

    def logits(self, hidden: Tensor, *, is_deterministic: bool = False) -> Tensor:
        self.num_logits.append(len(hidden))
        return self.model.logits(hidden, is_deterministic=is_deterministic)


class _WatchedBackend(ReferenceBackend):
    """Keeps how tokens were chosen."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.columns: list[SamplingColumns] = []
        self.masked: list[torch.dtype] = []
        # (any_filter, all_greedy)
        self.by_masks: list[tuple[bool, bool]] = []
        # (is at a border of 16 bytes, num_logprobs)
        self.looked_up: set[tuple[bool, int]] = set()

    def sample_masked(
        self, logits: Tensor, columns: SamplingColumns, masks: Tensor, places: Tensor
    ) -> Sampled:
        self.by_masks.append((columns.any_filter, columns.all_greedy))
        return Sampled(tokens=masks.new_zeros(len(logits)))

    def mask_tokens(self, scores: Tensor, masks: Tensor, places: Tensor | None = None) -> None:
        assert (masks == -1).all()
        self.masked.append(scores.dtype)
        super().mask_tokens(scores, masks, places)

    def report_logprobs(self, tokens: Tensor, logits: Tensor, num_logprobs: int) -> Sampled:
        self.looked_up.add((logits.data_ptr() % 16 == 0, num_logprobs))
        return super().report_logprobs(tokens, logits, num_logprobs)

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Sampled:
        self.columns.append(columns)
        return super().sample(logits, columns)


def _make(tiny: TinyModel, **settings: Any) -> tuple[WarmUp, _WatchedModel, _WatchedBackend]:
    defaults = {"max_num_batched_tokens": 50, "max_num_seqs": 6, "max_model_len": 20}
    config = tiny.config(block_size=4, **(defaults | settings))
    backend = _WatchedBackend()
    model = _WatchedModel(load_model(config, backend, TensorParallel()))
    return WarmUp(config, backend, model), model, backend


def _counts(layout: BatchLayout) -> list[int]:
    return layout.query_starts.diff().tolist()


def test_prompts_fill_the_token_budget_and_all_rows_get_a_token(tiny: TinyModel) -> None:
    warm_up, model, backend = _make(tiny)
    warm_up.prefill()
    [layout] = model.layouts
    assert _counts(layout) == [20, 20, 10]
    assert (layout.num_decodes, layout.max_query_len, layout.max_context_len) == (0, 20, 20)
    assert layout.positions.tolist() == [*range(20), *range(20), *range(10)]
    assert [len(columns.positions) for columns in backend.columns] == [6]


def test_all_rows_decode(tiny: TinyModel) -> None:
    warm_up, model, _ = _make(tiny)
    warm_up.decode()
    [layout] = model.layouts
    assert (layout.num_decodes, _counts(layout)) == (6, [1] * 6)


def test_kernels_are_compiled_for_all_sizes_and_ways_to_choose(tiny: TinyModel) -> None:
    warm_up, model, backend = _make(tiny, max_model_len=64)
    warm_up.compile_kernels()
    sizes = [8, 24, 48, 96, 192]
    assert [sum(_counts(layout)) for layout in model.layouts] == sizes * 2
    # those of all tokens, as prompts that are scored want them
    assert model.num_logits == sizes * 2
    assert [layout.is_deterministic for layout in model.layouts] == [False] * 5 + [True] * 5
    assert [layout.num_decodes for layout in model.layouts] == [1] * 5 + [0] * 5
    ways = {
        (columns.num_logprobs, columns.any_filter, columns.all_greedy)
        for columns in backend.columns
    }
    flags = ((True, False), (False, False), (False, True))
    assert ways >= {(count, *flag) for count in (-1, 0, 20) for flag in flags}
    assert backend.masked == [torch.float32] * 10
    assert backend.by_masks == [(True, False), (False, True)] * 10
    # as many bytes as a row of logits here are no multiple of 16
    assert backend.looked_up == {(True, 0), (True, 20), (False, 0), (False, 20)}


def test_the_pool_is_only_read(tiny: TinyModel) -> None:
    warm_up, model, _ = _make(tiny)
    warm_up.prefill()
    warm_up.decode()
    for layout, kv in zip(model.layouts, model.pools, strict=True):
        assert set(layout.slot_mapping.tolist()) == {-1}
        assert len(kv) == 1
        assert not kv.any()


def test_blocks_of_the_pool_are_those_of_the_model(tiny: TinyModel) -> None:
    warm_up, model, _ = _make(tiny)
    warm_up.decode()
    shape = tiny.config().model
    assert model.pools[0].shape == (
        1,
        shape.num_layers,
        2,
        shape.num_kv_heads,
        4,
        shape.head_dim,
    )
