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
