"""Which graphs have run."""

from typing import Any

import pytest

from engine.worker.graphs.graph_batch import GraphShape
from engine.worker.graphs.masked_choices import MaskedChoices
from kernels.batch import Sampled


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> list[GraphShape]:
    """Shapes behind which a graph has chosen by masks."""
    shapes: list[GraphShape] = []
    choose = MaskedChoices.choose

    def note(self: MaskedChoices, shape: GraphShape, *rest: Any) -> Sampled:
        shapes.append(shape)
        return choose(self, shape, *rest)

    monkeypatch.setattr(MaskedChoices, "choose", note)
    return shapes
