import pytest

from engine.errors import (
    EngineUnavailable,
    InvalidRequest,
    InvariantViolated,
    Overloaded,
    PromptTooLong,
    RequestError,
)
from engine.runtime.messages import OUTPUTS, decode_batch, encode_batch, error_of, refusal_of
from engine.runtime.outputs import failure, idle_stats
from engine.types import Capacity

STATS = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1))


@pytest.mark.parametrize(
    "error",
    [
        PromptTooLong("long", param="prompt", limit=3, got=4),
        Overloaded("full", retry_after_s=2.5),
        EngineUnavailable("rebuilding", retry_after_s=4.0),
        InvalidRequest("bad", param="max_tokens"),
    ],
)
def test_a_refusal_becomes_the_same_error_again(error: RequestError | EngineUnavailable) -> None:
    again = error_of(refusal_of(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_batch_is_read_as_the_outputs_that_were_joined() -> None:
    outputs = [failure([(1, 0), (2, 0)], STATS), failure([], STATS)]
    batch = decode_batch(encode_batch([OUTPUTS.encode(output) for output in outputs]))
    assert [output.request_ids.tolist() for output in batch] == [[1, 2], []]


def test_junk_is_no_batch() -> None:
    with pytest.raises(InvariantViolated):
        decode_batch(b"junk")
