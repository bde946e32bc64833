"""Logs how far the ranks of a gang are with their weights."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from engine.executor.rank_actor import LoadProgress

logger = logging.getLogger(__name__)

PERIOD_S = 2.0


class WeightsProgress:
    """A line every `PERIOD_S` seconds while weights are read or drawn, and one when all are there.

    What ranks do behind that, such as compiling kernels, they log themselves.
    """

    def __init__(self, ranks: Sequence[Any], *, is_dummy: bool) -> None:
        """Args: ranks: actors that have `load_progress`."""
        self._ranks = ranks
        self._source = "dummy" if is_dummy else "files"
        self._is_over = False

    async def watch(self) -> None:
        """Log until all weights are there; may be cancelled."""
        while not self._is_over:
            await asyncio.sleep(PERIOD_S)
            await self.log()

    async def log(self) -> None:
        """Ask the ranks once; says nothing where there is nothing to say."""
        if self._is_over:
            return
        try:
            asked = [rank.load_progress.remote() for rank in self._ranks]
            found: list[LoadProgress] = await asyncio.gather(*asked)
        except RayError as error:
            # the load itself fails, too
            logger.debug("no_progress reason=%s", error)
            return
        done = sum(each.done_bytes for each in found)
        total = sum(each.total_bytes for each in found)
        times = [each.took_s for each in found if each.took_s is not None]
        if len(times) == len(found):
            self._is_over = True
            logger.info(
                "weights_loaded source=%s ranks=%d bytes=%d seconds=%.1f",
                self._source,
                len(found),
                total,
                max(times),
            )
        elif total:
            logger.info("weights_loading source=%s bytes=%d of=%d", self._source, done, total)
