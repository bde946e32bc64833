import pytest

from load_tests.bench.kernels.race import ROTATED_BYTES, num_rotations


@pytest.mark.parametrize("num_bytes", [1, 10 << 20, ROTATED_BYTES, 4 * ROTATED_BYTES])
def test_rotations_outgrow_the_cache(num_bytes: int) -> None:
    rotations = num_rotations(num_bytes)
    assert rotations >= 2
    assert rotations * num_bytes >= ROTATED_BYTES
    assert rotations == 2 or (rotations - 1) * num_bytes < ROTATED_BYTES
