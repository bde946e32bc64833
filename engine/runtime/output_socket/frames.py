"""What either end says behind its proof: frames of a size, a number and a body.

A client numbers its questions from 1 on; an answer has the number of its question, and an output 0.
"""

from collections.abc import Iterator

OUTPUT = 0
_SIZE_BYTES = 4
_NUMBER_BYTES = 8
HEADER_BYTES = _SIZE_BYTES + _NUMBER_BYTES
# what 4,096 requests of one client may have waiting
MAX_BODY_BYTES = 1 << 30


def frame(number: int, body: bytes) -> bytes:
    """One frame."""
    header = len(body).to_bytes(_SIZE_BYTES, "little") + number.to_bytes(_NUMBER_BYTES, "little")
    return header + body


class FrameParser:
    """Takes a stream apart."""

    def __init__(self) -> None:
        self._part = bytearray()

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has come in part."""
        return bool(self._part)

    def take(self, data: bytes | bytearray) -> Iterator[tuple[int, bytes]]:
        """Yield number and body of each frame that is complete with these bytes.

        Raises:
            ValueError: if a body is longer than any may be.
        """
        part = self._part
        part += data
        while len(part) >= HEADER_BYTES:
            size = int.from_bytes(part[:_SIZE_BYTES], "little")
            if size > MAX_BODY_BYTES:
                raise ValueError(f"a frame of {size} bytes is too long")
            end = HEADER_BYTES + size
            if len(part) < end:
                return
            number = int.from_bytes(part[_SIZE_BYTES:HEADER_BYTES], "little")
            body = bytes(part[HEADER_BYTES:end])
            del part[:end]
            yield number, body
