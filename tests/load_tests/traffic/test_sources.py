from itertools import pairwise

import pytest

from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.sources import (
    HASH_BLOCK,
    MAX_TOTAL_LEN,
    SOURCES,
    Conversations,
    Drawn,
    drawn_source,
)


def test_prompts_share_prefixes_and_conversations_their_past() -> None:
    drawn = Drawn(lengths=FixedLengths(9, 5), num_prefixes=2, prefix_len=40, beam_width=3)
    prompts = drawn.requests(2.0, 50, seed=1)
    assert {request.hash_ids for request in prompts} == {(0, 1), (2, 3)}
    assert {(r.input_len, r.n, r.beam_width) for r in prompts} == {(49, 3, 3)}
    chat = Conversations(FixedLengths(24, 8)).requests(4.0, 200, seed=1)
    assert len(chat) == 200
    assert chat[-1].due_s == pytest.approx(50, rel=0.2)
    assert chat[0].due_s >= 0
    by_start: dict[int, list[tuple[int, ...]]] = {}
    for request in chat:
        assert len(request.hash_ids) == request.input_len // HASH_BLOCK
        by_start.setdefault(request.hash_ids[0], []).append(request.hash_ids)
    longest = max(by_start.values(), key=len)
    assert len(longest) > 1
    for earlier, later in pairwise(longest):
        assert later[: len(earlier)] == earlier


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_requests_that_fit(name: str) -> None:
    requests = drawn_source(name).requests(4.0, 40, seed=0)
    assert len(requests) == 40
    assert all(0 < r.input_len < r.input_len + r.output_len <= MAX_TOTAL_LEN for r in requests)
    assert all(len(r.hash_ids) * r.hash_block <= r.input_len for r in requests)
    assert [r.due_s for r in requests] == sorted(r.due_s for r in requests)


def test_a_source_must_be_known() -> None:
    with pytest.raises(ValueError, match="'poetry' is not one of azure-code, "):
        drawn_source("poetry")
