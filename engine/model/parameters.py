"""Reads the part of each parameter that one rank holds, fused as the layers need it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.architectures.weights import StoredWeights, WeightPlace
from engine.integers import div_ceil
from engine.model.parallel import TensorParallel

_NO_HEADS: Mapping[str, int] = {}
_NO_ORDERS: Mapping[str, Sequence[int]] = {}


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

    def skip(self, name: str) -> None:
        """Note that parameter `name` is there, and that another rank reads it.

        Raises:
            ConfigError: if there is no such parameter.
        """
        ...


class Parameters:
    """One rank's view of a source: weights by their roles, shared out between the ranks."""

    def __init__(
        self,
        source: ParameterSource,
        stored: StoredWeights,
        parallel: TensorParallel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.parallel = parallel
        self._source = source
        self._stored = stored
        self._dtype = dtype
        self._device = device

    def whole(
        self,
        role: str,
        suffix: str = "weight",
        layer: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Read a parameter that every rank holds, in the model's dtype or another."""
        place = self._stored.place(role, suffix, layer)
        target = self.empty(*place.shape, dtype=dtype)
        self._source.fill(target, place.name, place.shape, dim=0, start=0)
        return target

    def rows(
        self,
        roles: Sequence[str],
        suffix: str,
        layer: int,
        *,
        kv_heads: Mapping[str, int] = _NO_HEADS,
        orders: Mapping[str, Sequence[int]] = _NO_ORDERS,
    ) -> Tensor:
        """Read this rank's outputs of several weights into one (column-parallel layers).

        Args:
            suffix: `weight`, for [outputs / ranks, inputs], or `bias`.
            kv_heads: role -> key-value heads of a weight that has such, see `TensorParallel.span`.
            orders: role -> places of the outputs of each head, see `rope.head_order`.
        """
        places = [self._stored.place(role, suffix, layer) for role in roles]
        spans = [
            self.parallel.span(place.count, f"rows of {place.name}", num_heads=kv_heads.get(role))
            for role, place in zip(roles, places, strict=True)
        ]
        fused = self.empty(sum(map(len, spans)), *_inputs(places[0]))
        targets = torch.split(fused, [len(span) for span in spans])
        for role, target, span, place in zip(roles, targets, spans, places, strict=True):
            self._fill(target, place, dim=0, start=place.start + span.start)
            if role in orders:
                target.copy_(in_order(target, orders[role]))
        return fused

    def columns(self, role: str, layer: int) -> Tensor:
        """Read this rank's inputs of a weight (row-parallel layers)."""
        place = self._stored.place(role, "weight", layer)
        (num_inputs,) = _inputs(place)
        share = self.parallel.share(num_inputs, f"columns of {place.name}")
        target = self.empty(place.count, share)
        self._fill(target, place, dim=1, start=self.parallel.rank * share)
        return target

    def summed_bias(self, role: str, layer: int) -> Tensor | None:
        """Read the bias of a row-parallel layer, whose results are summed: one rank adds it."""
        bias = self.whole(role, "bias", layer)
        return bias if self.parallel.rank == 0 else None

    def vocab_rows(self, role: str) -> Tensor:
        """Read this rank's rows of an embedding; the last rank's are padded with zeros."""
        place = self._stored.place(role)
        vocab_size, width = place.shape
        share = div_ceil(vocab_size, self.parallel.size)
        start = min(self.parallel.rank * share, vocab_size)
        target = self.empty(share, width).zero_()
        held = target[: vocab_size - start]
        self._source.fill(held, place.name, place.shape, dim=0, start=start)
        return target

    def expert(
        self,
        target: Tensor,
        role: str,
        layer: int,
        expert: int,
        *,
        dim: int = 0,
        start: int = 0,
    ) -> None:
        """Read a part of one expert's weight into `target`, IN PLACE.

        Args:
            target: need not be contiguous.
            dim: 0 for outputs from `start` on, 1 for inputs.
        """
        place = self._stored.place(role, "weight", layer, expert)
        self._fill(target, place, dim=dim, start=place.start + start if dim == 0 else start)

    def skip_expert(self, role: str, layer: int, expert: int) -> None:
        """Note that another rank reads one expert's weight."""
        self._source.skip(self._stored.place(role, "weight", layer, expert).name)

    @property
    def dtype(self) -> torch.dtype:
        """Of the model."""
        return self._dtype

    @property
    def has_stacks(self) -> bool:
        """See `StoredWeights`."""
        return self._stored.has_stacks

    def stack(
        self, role: str, suffix: str, layer: int, experts: range, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Read some experts' part of a tensor of all; see `StoredWeights.stack`."""
        place = self._stored.stack(role, suffix, layer)
        target = self.empty(len(experts), *place.shape[1:], dtype=dtype)
        self._fill(target, place, dim=0, start=experts.start)
        return target

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Make a tensor for parameters of this rank, of the model's dtype or another."""
        return torch.empty(shape, dtype=dtype or self._dtype, device=self._device)

    def _fill(self, target: Tensor, place: WeightPlace, *, dim: int, start: int) -> None:
        """Fill outputs (dim 0) or inputs (dim 1) from `start` on, however they are stored."""
        if place.is_transposed:
            target, dim = target.T, 1 - dim
        self._source.fill(target, place.name, place.shape, dim=dim, start=start)


def in_order(rows: Tensor, order: Sequence[int]) -> Tensor:
    """Put the rows of each head, [heads * len(order), ...], in another order."""
    heads = rows.view(-1, len(order), *rows.shape[1:])
    return heads[:, torch.tensor(order, device=rows.device)].flatten(0, 1)


def _inputs(place: WeightPlace) -> tuple[int, ...]:
    """Dimensions of a weight or bias behind its outputs."""
    return place.shape[:-1] if place.is_transposed else place.shape[1:]
