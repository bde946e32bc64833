import logging
from collections.abc import Iterator

import pytest

from app.telemetry.log_level import LogLevel

APP = logging.getLogger("app")


@pytest.fixture
def level() -> Iterator[LogLevel]:
    before = APP.level
    APP.setLevel(logging.WARNING)
    changed = LogLevel()
    yield changed
    changed.reset()
    APP.setLevel(before)


def test_a_level_is_set_back_when_its_time_has_passed(level: LogLevel) -> None:
    level.set("debug", 0.01)
    timer = level._timer
    assert timer is not None
    timer.join(timeout=10)
    assert APP.level == logging.WARNING


def test_a_second_level_ends_the_first_and_goes_back_to_what_was_before(level: LogLevel) -> None:
    level.set("debug", 60)
    level.set("error", 60)
    assert APP.level == logging.ERROR
    level.reset()
    level.reset()
    assert APP.level == logging.WARNING
