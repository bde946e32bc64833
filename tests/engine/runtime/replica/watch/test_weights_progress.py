import asyncio
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from engine.executor.rank_actor import LoadProgress
from engine.runtime.replica.watch.weights_progress import WeightsProgress


class Rank:
    """Says at each call what comes next; the last is said for ever, an error raised."""

    def __init__(self, said: Sequence[LoadProgress | Exception]) -> None:
        self._said = list(said)
        self.load_progress = SimpleNamespace(remote=self._say)

    async def _say(self) -> LoadProgress:
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        if isinstance(said, Exception):
            raise said
        return said


BEFORE, HALF, ALL = LoadProgress(), LoadProgress(3, 5), LoadProgress(5, 5, 2.5)


async def test_bytes_of_all_ranks_are_logged_until_all_are_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("engine.runtime.replica.watch.weights_progress.PERIOD_S", 0.0)
    slower = ALL._replace(took_s=4.0)
    ranks: list[Any] = [Rank([BEFORE, HALF, ALL]), Rank([BEFORE, HALF, HALF, slower])]
    progress = WeightsProgress(ranks, is_dummy=False)
    await asyncio.wait_for(progress.watch(), 10)
    await progress.log()
    assert caplog.messages == [
        "weights_loading source=files bytes=6 of=10",
        "weights_loading source=files bytes=8 of=10",
        "weights_loaded source=files ranks=2 bytes=10 seconds=4.0",
    ]


async def test_a_rank_that_is_gone_is_no_error_here(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    progress = WeightsProgress([Rank([RayActorError(error_msg="killed")])], is_dummy=True)
    await progress.log()
    assert caplog.messages == []
