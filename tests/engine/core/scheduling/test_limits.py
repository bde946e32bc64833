"""What is refused before it is queued, and what is clipped."""

import pytest

from engine.config import SchedulerConfig
from engine.core.scheduling.grouping import make_group
from engine.core.scheduling.limits import blocks_needed, clip_max_tokens, max_positions
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import Capacity, Request, SamplingParams, int32

CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_model_len=512, prompt_share=1.0)
POOL = Capacity(num_blocks=64, block_size=16, num_rows=8)
SMALL_POOL = Capacity(num_blocks=4, block_size=16, num_rows=8)


def clip(prompt_len: int, max_tokens: int, capacity: Capacity = POOL, n: int = 1) -> int:
    sampling = SamplingParams(max_tokens=max_tokens, n=n)
    return clip_max_tokens(prompt_len, sampling, CONFIG, capacity)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "clipped"),
    [(9, 10, 10), (9, 503, 503), (9, 510, 503), (511, 1, 1), (511, 2, 1), (1, 10**9, 511)],
)
def test_max_tokens_is_clipped_to_the_context_that_is_left(
    prompt_len: int, max_tokens: int, clipped: int
) -> None:
    assert clip(prompt_len, max_tokens) == clipped


@pytest.mark.parametrize("prompt_len", [512, 513])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(prompt_len: int) -> None:
    with pytest.raises(PromptTooLong, match=rf"512 tokens.* {prompt_len} tokens") as caught:
        clip(prompt_len, 1)
    assert (caught.value.limit, caught.value.got) == (512, prompt_len)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_a_request_that_could_outgrow_the_pool_is_refused_with_both_numbers() -> None:
    # the last token is never fed back, so it needs no slot
    assert clip(60, 5, SMALL_POOL) == 5
    with pytest.raises(PromptTooLong, match=r"room for 64 tokens.*up to 80") as caught:
        clip(60, 6, SMALL_POOL)
    assert (caught.value.limit, caught.value.got) == (64, 80)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty") as caught:
        clip(0, 1)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_a_request_for_no_tokens_is_refused_with_the_value(max_tokens: int) -> None:
    with pytest.raises(InvalidRequest, match=f"got {max_tokens}") as caught:
        clip(1, max_tokens)
    assert caught.value.param == "max_tokens"


def test_the_last_token_takes_no_position() -> None:
    assert max_positions(10, 1) == 10
    assert max_positions(10, 5) == 14


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "num_sequences", "expected"),
    [(16, 17, 1, 2), (16, 18, 1, 3), (16, 17, 4, 5), (15, 2, 4, 4), (15, 3, 4, 8), (33, 1, 2, 4)],
)
def test_siblings_share_the_full_blocks_of_the_prompt_and_nothing_else(
    prompt_len: int, max_tokens: int, num_sequences: int, expected: int
) -> None:
    assert blocks_needed(prompt_len, max_tokens, num_sequences, 16) == expected


def test_siblings_that_could_outgrow_the_pool_together_are_refused() -> None:
    assert clip(16, 17, SMALL_POOL, n=3) == 17
    with pytest.raises(PromptTooLong, match="lower max_tokens or n"):
        clip(16, 17, SMALL_POOL, n=4)


def test_more_sequences_than_rows_are_refused() -> None:
    assert clip(1, 1, n=8) == 1
    with pytest.raises(InvalidRequest, match="up to 8 sequences, got 9") as caught:
        clip(1, 1, n=9)
    assert caught.value.param == "n"


def test_a_prompt_as_long_as_the_context_is_refused() -> None:
    with pytest.raises(PromptTooLong):
        make_group(
            Request(request_id=0, prompt=int32([1] * 512), sampling=SamplingParams(max_tokens=1)),
            0,
            CONFIG,
            POOL,
        )


def test_a_group_with_more_sequences_than_rows_is_refused() -> None:
    request = Request(request_id=0, prompt=int32([1]), sampling=SamplingParams(max_tokens=1, n=9))
    with pytest.raises(InvalidRequest):
        make_group(request, 0, CONFIG, POOL)


def test_one_sequence_may_be_longer_than_the_pool_where_windows_leave_room() -> None:
    # 2 x 4 blocks, of which a window of 8 and a step of 16 take ceil(24 / 16) + 1
    capacity = Capacity(num_blocks=9, block_size=16, num_rows=8, windows=(0, 8))
    config = SchedulerConfig(max_num_batched_tokens=16, max_model_len=512)
    single = SamplingParams(max_tokens=1)
    assert clip_max_tokens(80, single, config, capacity) == 1
    with pytest.raises(PromptTooLong, match="room for 80 tokens"):
        clip_max_tokens(81, single, config, capacity)
    with pytest.raises(PromptTooLong, match="room for 64 tokens"):
        clip_max_tokens(65, SamplingParams(max_tokens=1, n=2), config, capacity)
