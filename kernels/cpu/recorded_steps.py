"""Keeps the recorded steps of the shapes of batches that come again."""

from collections import OrderedDict
from collections.abc import Hashable

from torch import Tensor

from kernels.backend import Layers
from kernels.batch import BatchLayout
from kernels.cpu.library import Library
from kernels.cpu.recording import RecordedStep, record, table_width

# about half a megabyte each with 32 rows of a small model
_MOST_STEPS = 64
_MOST_SEEN = 1024


class RecordedSteps:
    """Runs layers, and from the third time on the calls that a batch of this shape made before.

    Only of decodes: their shapes come again. Recording a step takes a few milliseconds more than
    running it, so a shape that came once is not recorded yet.
    """

    def __init__(self, library: Library) -> None:
        """Args: library: of all kernels that layers call."""
        self._library = library
        self._steps: OrderedDict[Hashable, RecordedStep] = OrderedDict()
        # shapes that have come once
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        # layers that do more than to call kernels
        self._others: set[Layers] = set()

    def run(self, layers: Layers, x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """See `KernelBackend.run_layers`."""
        if not self._can_repeat(layers, layout):
            return layers(x, kv, layout)
        shape = (layers, kv.data_ptr(), kv.shape, x.shape, layout.is_deterministic)
        key = (*shape, len(layout.context_lens), table_width(layout))
        step = self._steps.get(key)
        if step is not None:
            self._steps.move_to_end(key)
            return step(x, layout)
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
            return layers(x, kv, layout)
        return self._record(key, layers, x, kv, layout)

    def _can_repeat(self, layers: Layers, layout: BatchLayout) -> bool:
        return (
            self._library.can_run_calls
            and layout.max_query_len == 1
            and layout.before_layer is None
            and layers not in self._others
        )

    def _record(
        self, key: Hashable, layers: Layers, x: Tensor, kv: Tensor, layout: BatchLayout
    ) -> Tensor:
        hidden, step = record(self._library, layers, x, kv, layout)
        if step is None:
            self._others.add(layers)
            return hidden
        self._steps[key] = step
        if len(self._steps) > _MOST_STEPS:
            self._steps.popitem(last=False)
        return hidden
