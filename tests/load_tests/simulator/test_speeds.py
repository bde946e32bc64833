import pytest

from load_tests.simulator.speeds import Extrapolated, by_batch
from load_tests.simulator.step_tables import StepTable
from load_tests.simulator.step_time import LinearStepTime, StepWork

# linear in everything, so that a line through two points is exact
LINEAR = LinearStepTime(
    weights_s=0.0, token_s=1e-3, context_token_s=1e-6, step_s=5e-3, sequence_s=1e-4
)


work = StepWork.alike


class Limited:
    """Knows no step beyond 8 decodes, 64 positions of each and 32 prompt tokens."""

    def seconds(self, work: StepWork) -> float:
        assert work.num_decodes <= 8
        assert work.num_decode_positions <= 64 * work.num_decodes
        assert work.num_prompt_tokens <= 32
        return LINEAR.seconds(work)


@pytest.mark.parametrize(
    "step",
    [work(8, 64, 32), work(20, 10), work(4, 200), work(0, 0, 100), work(20, 10, 100)],
)
def test_beyond_a_table_time_goes_on_along_a_line(step: StepWork) -> None:
    model = Extrapolated(Limited(), (8, 64, 32))
    assert model.seconds(step) == pytest.approx(LINEAR.seconds(step))


def test_batches_keep_their_times_even_where_fewer_take_longer() -> None:
    table = StepTable(
        model="m", device="cpu", dtype="float32", block_size=16, machine={}, batches=(1, 2, 4),
        contexts=(10, 30), decode_s=((3.0, 3.0), (5.0, 7.0), (4.0, 6.0)), prompt_lens=(4, 8),
        prefill_s=(3.0, 6.0), spread=1.0,
    )  # fmt: skip
    model = by_batch(table)
    assert [model.seconds(work(n, 10)) for n in (1, 2, 3, 4)] == [3.0, 5.0, 4.5, 4.0]
    assert model.seconds(work(3, 20)) == 5.5
    assert model.seconds(work(0, 0, 6)) == 4.5
    # beside decodes a prompt adds what it takes beyond the shortest step
    assert model.seconds(work(4, 10, 8)) == pytest.approx(4.0 + 6.0 - 3.0)
