import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config import swap_arena_bytes
from load_tests.bench.in_process.arena import swap_arena
from tests import ROOT

CONFIG: Any = SimpleNamespace(block_bytes=4096)


def test_private_swap_space_needs_no_arena() -> None:
    with swap_arena(CONFIG, 8, is_private=True) as view:
        assert view is None


@pytest.mark.ray
@pytest.mark.slow
def test_an_arena_is_an_object_with_room_for_all_blocks() -> None:
    # a process can be in one cluster, and this one is in that of other tests
    print_arena = """
from types import SimpleNamespace
from load_tests.bench.in_process.arena import swap_arena
with swap_arena(SimpleNamespace(block_bytes=4096), 8) as view:
    print(view.dtype, view.nbytes)
"""
    printed = subprocess.run(
        [sys.executable, "-c", print_arena], cwd=ROOT, capture_output=True, text=True, check=True
    )
    dtype, num_bytes = printed.stdout.split()
    assert dtype == "uint8"
    assert int(num_bytes) >= swap_arena_bytes(8, 4096)
