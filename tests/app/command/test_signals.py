import os
import signal

import pytest

from app.command.signals import ENDING, EndingSignals


@pytest.mark.parametrize("number", ENDING)
def test_an_ending_signal_is_kept_until_it_is_asked_for(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with EndingSignals() as signals:
        assert signals.wait(0.0) is None
        os.kill(os.getpid(), number)
        assert signals.wait(60.0) == number
        assert signals.wait(0.0) is None
    assert signal.getsignal(number) is before


def test_other_signals_do_not_count() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with EndingSignals() as signals:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.wait(60.0) is None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_something_else_that_can_be_read_ends_the_wait() -> None:
    reader, writer = os.pipe()
    try:
        with EndingSignals() as signals:
            os.write(writer, b"x")
            assert signals.wait(60.0, [reader]) is None
            os.kill(os.getpid(), ENDING[0])
            assert signals.wait(60.0, [reader]) == ENDING[0]
    finally:
        os.close(reader)
        os.close(writer)
