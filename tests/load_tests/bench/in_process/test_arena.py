from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.config import swap_arena_bytes
from load_tests.bench.in_process.arena import swap_arena

CONFIG: Any = SimpleNamespace(block_bytes=4096)


def test_private_swap_space_needs_no_arena() -> None:
    with swap_arena(CONFIG, 8, is_private=True) as view:
        assert view is None


@pytest.mark.ray
@pytest.mark.slow
def test_an_arena_is_an_object_with_room_for_all_blocks() -> None:
    with swap_arena(CONFIG, 8) as view:
        assert view is not None
        assert view.dtype == np.uint8
        assert view.nbytes >= swap_arena_bytes(8, 4096)
