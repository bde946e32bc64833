"""The kernels that the layers of a step call, noted once and called again without Python.

What layers compute for a batch of one shape are always the same calls, with other numbers behind
the same addresses. So they are noted while they are made, their outputs placed into one piece of
memory, where an output takes the place of those that nobody reads any more, and from then on all
are made by one call of C. As with CUDA graphs, whatever is not a kernel of ours would be left out:
layers that do anything else are not noted.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.backend import Layers
from kernels.batch import BatchLayout
from kernels.cpu.library import Call, Library

# `struct call` of source/calls.c
_CALL = np.dtype(
    [("kernel", "i8"), ("has_status", "i8"), ("whole", "i8", 18), ("real", "f4", 4)], align=True
)
_LINE_BYTES = 64
# what computes nothing: outputs for kernels to write, and looks at tensors
_ATEN = torch.ops.aten
_MAKING = {_ATEN.empty.memory_format, _ATEN.empty_like.default}
_LOOKING = {_ATEN.select.int, _ATEN.slice.Tensor, _ATEN.view.default, _ATEN.detach.default}


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a call writes first and another one reads last, by their places."""

    num_bytes: int
    first: int
    last: int


class RecordedStep:
    """The calls of some layers for batches of one shape."""

    def __init__(
        self,
        library: Library,
        calls: "np.ndarray[Any, np.dtype[np.void]]",
        x: Tensor,
        layout: BatchLayout,
        result: Tensor,
        *,
        kept: Sequence[Tensor],
    ) -> None:
        """Take what was noted.

        Args:
            x, layout, result: what the calls read, and where they leave the hidden states.
            kept: what else they use.
        """
        self._library = library
        self._calls = calls
        self._x = x
        self._layout = layout
        self._result = result
        self._kept = kept

    def __call__(self, x: Tensor, layout: BatchLayout) -> Tensor:
        """Run the layers on another batch of the same shape; x is left as it is.

        Raises:
            MemoryError: if a kernel had none.
        """
        self._x.copy_(x)
        copy_columns(layout, self._layout)
        if self._library.run_calls(self._calls.ctypes.data, len(self._calls)):
            raise MemoryError("no memory for the scores of attention")
        return self._result.clone()


def record(
    library: Library, layers: Layers, x: Tensor, kv: Tensor, layout: BatchLayout
) -> tuple[Tensor, RecordedStep | None]:
    """Run layers once.

    Args:
        x: is left as it is.

    Returns:
        The hidden states; and what repeats this, None where it would leave something out.
    """
    own_x, own_layout = x.clone(), _roomy(layout)
    with library.noting() as calls, _Watch() as watch:
        result = layers(own_x, kv, own_layout)
    if watch.has_others:
        return result, None
    outputs = _Outputs(watch.made)
    places, num_bytes = placed(outputs.in_use(calls, result))
    memory = torch.empty(num_bytes + _LINE_BYTES, dtype=torch.uint8)
    outputs.move(places, memory.data_ptr() + -memory.data_ptr() % _LINE_BYTES)
    packed = np.zeros(len(calls), _CALL)
    for place, call in enumerate(calls):
        whole = [
            outputs.moved(number) if is_address else number
            for number, is_address in zip(call.whole, call.are_addresses, strict=True)
        ]
        packed[place] = (call.kernel, call.has_status, _filled(whole, 18), _filled(call.real, 4))
    kept = own_x
    if result.data_ptr() != own_x.data_ptr():
        start = outputs.moved(result.data_ptr()) - memory.data_ptr()
        kept = memory[start : start + result.nbytes].view(result.dtype).view(result.shape)
    # the pool and the weights of the layers belong to the caller
    return result, RecordedStep(library, packed, own_x, own_layout, kept, kept=(memory,))


def placed(outputs: Sequence[Output]) -> tuple[list[int], int]:
    """Give each output a place where no other one is that is in use at the same time.

    Args:
        outputs: in the order of their first uses.

    Returns:
        Where each begins, in bytes, and the bytes of all.
    """
    places: list[int] = []
    num_bytes = 0
    in_use: list[tuple[int, int, int]] = []
    for output in outputs:
        place = 0
        in_use = sorted(it for it in in_use if it[2] >= output.first)
        for start, end, _ in in_use:
            if place + output.num_bytes <= start:
                break
            place = max(place, -(-end // _LINE_BYTES) * _LINE_BYTES)
        in_use.append((place, place + output.num_bytes, output.last))
        places.append(place)
        num_bytes = max(num_bytes, place + output.num_bytes)
    return places, num_bytes


def copy_columns(source: BatchLayout, target: BatchLayout) -> None:
    """Copy the columns that kernels read; block tables may be narrower than those of the target."""
    target.positions.copy_(source.positions)
    target.context_lens.copy_(source.context_lens)
    target.query_starts.copy_(source.query_starts)
    for given, own in zip(source.by_group, target.by_group, strict=True):
        own.slot_mapping.copy_(given.slot_mapping)
        own.block_tables[:, : given.block_tables.shape[1]].copy_(given.block_tables)


def table_width(layout: BatchLayout) -> int:
    """Columns of block tables that are recorded, the next power of two: they grow with contexts."""
    widest = max(one.block_tables.shape[1] for one in layout.by_group)
    return 1 << (widest - 1).bit_length()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what torch does.

    Attributes:
        made: tensors that were made for kernels to write.
        has_others: whether torch has computed anything.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Tensor] = []
        self.has_others = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # otherwise the compiler is loaded first, which takes seconds
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _MAKING:
            self.made.append(result)
        elif func not in _LOOKING:
            self.has_others = True
        return result


def _roomy(layout: BatchLayout) -> BatchLayout:
    """A copy with columns of its own, and room in its block tables."""
    width = table_width(layout)

    def own(one: BatchLayout) -> tuple[Tensor, Tensor]:
        # block 0 is a valid one
        return one.slot_mapping.clone(), one.block_tables.new_zeros(len(one.block_tables), width)

    (slot_mapping, block_tables), *others = map(own, layout.by_group)
    first = replace(
        layout,
        positions=layout.positions.clone(),
        context_lens=layout.context_lens.clone(),
        query_starts=layout.query_starts.clone(),
        slot_mapping=slot_mapping,
        block_tables=block_tables,
        others=(),
    )
    roomy = first.with_groups(others)
    copy_columns(layout, roomy)
    return roomy


class _Outputs:
    """Tensors that were made for kernels to write, by their addresses."""

    def __init__(self, made: Sequence[Tensor]) -> None:
        # all of them are still there, so that no two have a byte in common
        self._made = sorted((it.data_ptr(), it.nbytes) for it in made if it.nbytes)
        self._starts = [start for start, _ in self._made]
        self._used: list[int] = []
        self._by: dict[int, int] = {}

    def in_use(self, calls: Sequence[Call], result: Tensor) -> list[Output]:
        """When each that is used at all is used, by their first uses; the result to the end."""
        spans: dict[int, tuple[int, int]] = {}
        for place, call in enumerate(calls):
            for number, is_address in zip(call.whole, call.are_addresses, strict=True):
                index = self._find(number) if is_address else None
                if index is not None:
                    spans[index] = spans.get(index, (place, place))[0], place
        index = self._find(result.data_ptr())
        if index is not None:
            spans[index] = spans[index][0], len(calls)
        self._used = list(spans)
        return [Output(self._made[index][1], *span) for index, span in spans.items()]

    def move(self, places: Sequence[int], base: int) -> None:
        """Give those in use their places, in bytes behind an address."""
        self._by = {
            index: base + place - self._starts[index]
            for index, place in zip(self._used, places, strict=True)
        }

    def moved(self, address: int) -> int:
        """Where an address is now; what is no output stays."""
        index = self._find(address)
        return address if index is None else address + self._by[index]

    def _find(self, address: int) -> int | None:
        index = bisect_right(self._starts, address) - 1
        return index if index >= 0 and address < sum(self._made[index]) else None


def _filled(numbers: Sequence[float], length: int) -> tuple[float, ...]:
    return (*numbers, *[0] * (length - len(numbers)))
