"""Reads the part of each parameter that one rank holds, fused as the layers need it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.integers import div_ceil
from engine.model.parallel import TensorParallel

_NO_HEADS: Mapping[str, int] = {}


class ParameterSource(Protocol):
    """Where parameters come from, by the names of the published checkpoints."""

    def fill(
        self, target: Tensor, name: str, shape: tuple[int, ...], *, dim: int, start: int
    ) -> None:
        """Write parameter `name` into `target`, IN PLACE, converted to its dtype and device.

        Args:
            target: as the whole parameter, but only target.shape[dim] long in dimension `dim`.
            shape: of the whole parameter.
            start: where the wanted part begins in dimension `dim`.

        Raises:
            ConfigError: if there is no such parameter or it has another shape.
        """
        ...


class Parameters:
    """One rank's view of a source."""

    def __init__(
        self,
        source: ParameterSource,
        parallel: TensorParallel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.parallel = parallel
        self._source = source
        self._dtype = dtype
        self._device = device

    def whole(self, name: str, *shape: int) -> Tensor:
        """Read a parameter that every rank holds."""
        target = self._empty(*shape)
        self._source.fill(target, name, shape, dim=0, start=0)
        return target

    def rows(
        self, parts: Mapping[str, int], *tail: int, kv_heads: Mapping[str, int] = _NO_HEADS
    ) -> Tensor:
        """Read this rank's rows of several parameters into one (column-parallel layers).

        Args:
            parts: name -> rows of the whole parameter.
            tail: remaining dimensions; none for biases.
            kv_heads: name -> key-value heads of a parameter that has such, see
                `TensorParallel.span`.
        """
        spans = [
            self.parallel.span(count, f"rows of {name}", num_heads=kv_heads.get(name))
            for name, count in parts.items()
        ]
        fused = self._empty(sum(map(len, spans)), *tail)
        targets = torch.split(fused, [len(span) for span in spans])
        for target, span, (name, count) in zip(targets, spans, parts.items(), strict=True):
            self._source.fill(target, name, (count, *tail), dim=0, start=span.start)
        return fused

    def columns(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """Read this rank's columns of a matrix (row-parallel layers)."""
        share = self.parallel.share(num_columns, f"columns of {name}")
        target = self._empty(num_rows, share)
        start = self.parallel.rank * share
        self._source.fill(target, name, (num_rows, num_columns), dim=1, start=start)
        return target

    def sections(self, name: str, counts: Sequence[int], *inputs: int) -> Tensor:
        """Read this rank's part of each section of outputs of one parameter, stored inputs first.

        Args:
            counts: outputs of each section of the whole parameter.
            inputs: the number of inputs; none for a bias.

        Returns:
            [sum(counts) / ranks, *inputs], rows of a column-parallel layer.
        """
        shares = [self.parallel.share(count, f"outputs of {name}") for count in counts]
        fused = self._empty(sum(shares), *inputs)
        shape, dim = (*inputs, sum(counts)), len(inputs)
        section_start = 0
        for target, count in zip(torch.split(fused, shares), counts, strict=True):
            start = section_start + self.parallel.rank * target.shape[0]
            self._source.fill(target.transpose(0, dim), name, shape, dim=dim, start=start)
            section_start += count
        return fused

    def columns_of_transposed(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """Read this rank's columns of a matrix that is stored transposed (row-parallel layers)."""
        share = self.parallel.share(num_columns, f"inputs of {name}")
        target = self._empty(num_rows, share)
        start = self.parallel.rank * share
        self._source.fill(target.T, name, (num_columns, num_rows), dim=0, start=start)
        return target

    def summed_bias(self, name: str, count: int) -> Tensor | None:
        """Read the bias of a row-parallel layer, whose results are summed: one rank adds it."""
        bias = self.whole(name, count)
        return bias if self.parallel.rank == 0 else None

    def vocab_rows(self, name: str, vocab_size: int, hidden_size: int) -> Tensor:
        """Read this rank's rows of an embedding; the last rank's are padded with zeros."""
        share = div_ceil(vocab_size, self.parallel.size)
        start = min(self.parallel.rank * share, vocab_size)
        target = self._empty(share, hidden_size).zero_()
        held = target[: vocab_size - start]
        self._source.fill(held, name, (vocab_size, hidden_size), dim=0, start=start)
        return target

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
