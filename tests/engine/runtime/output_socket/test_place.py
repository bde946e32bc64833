"""The place of a stream: what both ends say of it, and what they do not."""

import pytest

from engine.runtime.output_socket.place import (
    HELLO_BYTES,
    PATIENCE_S,
    PROOF_BYTES,
    SILENCE_S,
    OutputPlace,
    number_in,
)
from engine.runtime.replica.client_session import FORGIVEN_S


def test_each_stream_has_a_secret_of_its_own_which_no_text_shows() -> None:
    one, other = (OutputPlace(url="tcp://127.0.0.1:1", number=1) for _ in range(2))
    assert one.secret != other.secret
    assert len(one.secret) == PROOF_BYTES
    assert repr(one) == "OutputPlace(url='tcp://127.0.0.1:1', number=1)"
    assert one.secret not in one.hello + one.answer


def test_a_client_names_its_stream_and_neither_proof_is_the_other() -> None:
    place = OutputPlace(url="tcp://127.0.0.1:1", number=1 << 40)
    assert len(place.hello) == HELLO_BYTES
    assert number_in(place.hello) == place.number
    assert len(place.answer) == PROOF_BYTES
    assert not place.hello.endswith(place.answer)


@pytest.mark.parametrize(
    ("url", "address"),
    [("tcp://127.0.0.1:1", ("127.0.0.1", 1)), ("tcp://[fd00::7]:65535", ("fd00::7", 65535))],
)
def test_an_address_may_be_of_either_kind(url: str, address: tuple[str, int]) -> None:
    assert OutputPlace(url=url, number=0).address == address


def test_a_connection_lasts_as_long_as_a_client_that_reads_nothing() -> None:
    assert PATIENCE_S == SILENCE_S == FORGIVEN_S
