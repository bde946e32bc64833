"""Frames: what is said of each, and how they are found in a stream."""

import pytest

from engine.runtime.output_socket.frames import HEADER_BYTES, MAX_BODY_BYTES, FrameParser, frame

FRAMES = [(0, b"output"), (1, b""), (2**64 - 1, b"v" * 300), (0, b"x")]
STREAM = b"".join(frame(*each) for each in FRAMES)


@pytest.mark.parametrize("num_bytes", [1, 5, HEADER_BYTES, 100, len(STREAM)])
def test_a_stream_may_come_in_parts_of_any_size(num_bytes: int) -> None:
    parser, found = FrameParser(), []
    for start in range(0, len(STREAM), num_bytes):
        found += list(parser.take(STREAM[start : start + num_bytes]))
    assert found == FRAMES
    assert not parser.is_within_frame


def test_a_frame_that_has_come_in_part_is_known() -> None:
    parser = FrameParser()
    assert list(parser.take(STREAM[:-1])) == FRAMES[:-1]
    assert parser.is_within_frame


def test_a_body_that_is_too_long_is_not_awaited() -> None:
    header = (MAX_BODY_BYTES + 1).to_bytes(4, "little") + bytes(8)
    parser = FrameParser()
    with pytest.raises(ValueError, match="too long"):
        list(parser.take(header))
