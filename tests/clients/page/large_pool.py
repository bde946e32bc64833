"""The application on an engine that holds a large pool, for browsers to look at its block map."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread

from starlette.applications import Starlette

from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.telemetry.telemetry import Gathered, Telemetry, TelemetryOptions
from app.ui.page_options import PageOptions
from engine.runtime.messages import REPLICA_VIEWS
from engine.types import EngineSnapshot, MemoryUsage, PoolSnapshot, int8, int32, int64
from tests.app.api.server import serving
from tests.app.http.operator.test_access import ignore
from tests.app.text.tokenizers import chatml_tokenizer
from tests.app.ui.views import view_of
from tests.fakes.scripted_engine import FakeEngineClient

NUM_BLOCKS, BLOCK_SIZE = 50_000, 16
NUM_REQUESTS, TABLE_LEN = 256, 60
# of all requests alike
_PREFIX = list(range(4))
_KEPT, _PINNED = range(30_000, 40_000), range(39_900, 40_000)
_IS_KEPT = bytes(block in _KEPT for block in range(NUM_BLOCKS))
# by which all tables move from one snapshot to the next
_SHIFT = 97


def tables(number: int) -> list[list[int]]:
    """Block tables of the requests in a snapshot; the last one has `number` blocks more."""
    len_own = TABLE_LEN - len(_PREFIX)
    starts = [len(_PREFIX) + len_own * i + _SHIFT * (number % 100) for i in range(NUM_REQUESTS)]
    found = [_PREFIX + list(range(start, start + len_own)) for start in starts]
    end = found[-1][-1] + 1
    found[-1] += range(end, end + number)
    return found


def num_used(number: int) -> int:
    """Blocks that are in use in a snapshot."""
    return len(_PREFIX) + NUM_REQUESTS * (TABLE_LEN - len(_PREFIX)) + number


def holders(number: int) -> list[str]:
    """What the map shows of each block: the place of its request, `shared`, `kept` or `free`."""
    found = ["free"] * NUM_BLOCKS
    for block in _KEPT:
        found[block] = "kept"
    for place, table in enumerate(tables(number)):
        for block in table:
            found[block] = "shared" if block in _PREFIX else str(place)
    return found


@contextmanager
def large_pool() -> Iterator[str]:
    """Serve the page for a pool in which each snapshot differs; gives the address."""
    found: Future[str] = Future()
    ended = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(_app()) as http:
            found.set_result(str(http.base_url))
            await ended.wait()

    thread = Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield found.result(timeout=30).rstrip("/")
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


class _Views:
    """What the engine answers: a snapshot that differs from the one before."""

    def __init__(self) -> None:
        self._number = 0

    async def __call__(self, first_events: Mapping[str, int]) -> Sequence[bytes]:
        self._number += 1
        return [REPLICA_VIEWS.encode(view_of(_snapshot(self._number)))]


async def _nobody() -> Gathered:
    return Gathered()


def _app() -> Starlette:
    telemetry = Telemetry(
        TelemetryOptions(model_name="tiny", page=PageOptions(facts={"model": "tiny"})),
        replica="i",
        gather=_nobody,
        set_levels=ignore,
        views=_Views(),
    )
    api = ApiSettings(model_id="tiny", created_s=0, max_model_len=4096, vocab_size=500)
    return build_app(FakeEngineClient([]), chatml_tokenizer(), api, telemetry)


def _snapshot(number: int) -> EngineSnapshot:
    held = tables(number)
    references = int32([0]) * NUM_BLOCKS
    for table in held:
        for block in table:
            references[block] += 1
    known = [BLOCK_SIZE * len(table) - 1 for table in held]

    def each(value: int) -> list[int]:
        return [value] * NUM_REQUESTS

    return EngineSnapshot(
        time_us=1_700_000_000_000_000 + 200_000 * number,
        block_size=BLOCK_SIZE,
        usage=MemoryUsage(total=NUM_BLOCKS, filled=0, internal=0, free=0),
        num_running=NUM_REQUESTS,
        num_waiting=0,
        num_swapped=0,
        requests=int64([1000 + place for place in range(NUM_REQUESTS)]),
        accounts=(b"",) * NUM_REQUESTS,
        states=int8(each(2)),
        prompt_lens=int32(each(100)),
        max_tokens=int32(each(2000)),
        num_cached=int32(each(64)),
        widths=int32(each(1)),
        beam_widths=int32(each(0)),
        owners=int32(list(range(NUM_REQUESTS))),
        choices=int32(each(0)),
        num_known=int32(known),
        num_scheduled=int32(known),
        pool=PoolSnapshot(
            references=references,
            kept=_IS_KEPT,
            pinned=int32(list(_PINNED)),
            table_lens=int32([len(table) for table in held]),
            tables=int32([block for table in held for block in table]),
        ),
    )
