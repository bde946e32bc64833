import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.ui.audience import OPERATOR, Audience
from app.ui.feed import MAX_STREAM_S, Feed, TooManyViewers
from app.ui.page_options import PageOptions
from engine.errors import EngineError
from engine.types import EventKind
from tests.app.ui.views import ALICE, BOB, ScriptedViews, snapshot_of_two_tenants, view_of
from tests.fakes.loop_clock import LoopClock, settle

OPTIONS = PageOptions(max_viewers=2, facts={"model": "tiny"})


class Viewer:
    """Reads a stream as fast as it comes, or not at all."""

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self.events: list[tuple[str, Any]] = []
        self._stream = stream
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for chunk in self._stream:
            for message in chunk.decode().strip().split("\n\n"):
                name, data = message.split("\n")
                content = json.loads(data.removeprefix("data: "))
                self.events.append((name.removeprefix("event: "), content))

    def of(self, name: str) -> list[Any]:
        return [content for event, content in self.events if event == name]

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._stream.aclose()  # type: ignore[attr-defined]


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


def views_of_two() -> ScriptedViews:
    events = [(11, EventKind.QUEUED, 5, ALICE), (12, EventKind.QUEUED, 6, BOB)]
    return ScriptedViews(view_of(snapshot_of_two_tenants(), events, next_event=2))


async def test_while_nobody_looks_nothing_is_asked(clock: LoopClock) -> None:
    views = views_of_two()
    feed = Feed(views, OPTIONS)
    await clock.advance(100)
    assert views.asked == []
    viewer = Viewer(feed.open(OPERATOR, 2))
    await clock.advance(1)
    assert views.asked
    await viewer.leave()
    num_asked = len(views.asked)
    await clock.advance(100)
    assert len(views.asked) == num_asked
    assert feed.num_viewers == 0


async def test_all_viewers_share_what_is_asked_once(clock: LoopClock) -> None:
    views = views_of_two()
    feed = Feed(views, OPTIONS)
    viewers = [Viewer(feed.open(OPERATOR, 2)) for _ in range(2)]
    for _ in range(10):
        await clock.advance(0.5)
    assert 9 <= len(views.asked) <= 12
    for viewer in viewers:
        assert len(viewer.of("frame")) >= 9
        await viewer.leave()


async def test_a_viewer_gets_facts_a_frame_and_the_events_from_before(clock: LoopClock) -> None:
    feed = Feed(views_of_two(), OPTIONS)
    first = Viewer(feed.open(OPERATOR, 2))
    await clock.advance(1)
    second = Viewer(feed.open(OPERATOR, 2))
    await settle()
    for viewer in (first, second):
        assert viewer.of("hello")[0]["model"] == "tiny"
        assert viewer.of("hello")[0]["is_operator"] is True
        assert viewer.of("frame")[0]["replicas"][0]["requests"] == ["b", "c", "d"]
        assert [event[1] for event in viewer.of("events")[0]][:2] == ["b", "c"]
        await viewer.leave()


async def test_tenants_get_nothing_of_each_other(clock: LoopClock) -> None:
    feed = Feed(views_of_two(), OPTIONS)
    alice, bob = Viewer(feed.open(Audience(ALICE), 2)), Viewer(feed.open(Audience(BOB), 2))
    await clock.advance(1)
    assert alice.of("frame")[0]["replicas"][0]["requests"] == ["b", "d"]
    assert bob.of("frame")[0]["replicas"][0]["requests"] == ["c"]
    assert {event[1] for event in alice.of("events")[0]} == {"b"}
    assert {event[1] for event in bob.of("events")[0]} == {"c"}
    assert bob.of("hello")[0]["is_operator"] is False
    await alice.leave()
    await bob.leave()


async def test_only_so_many_may_look(clock: LoopClock) -> None:
    feed = Feed(views_of_two(), OPTIONS)
    viewers = [Viewer(feed.open(OPERATOR, 2)) for _ in range(2)]
    await settle()
    with pytest.raises(TooManyViewers):
        feed.open(OPERATOR, 2)
    await viewers.pop().leave()
    viewers.append(Viewer(feed.open(OPERATOR, 2)))
    await settle()
    assert feed.num_viewers == 2
    for viewer in viewers:
        await viewer.leave()


async def test_nobody_gets_more_frames_than_the_server_allows(clock: LoopClock) -> None:
    views = views_of_two()
    feed = Feed(views, PageOptions(max_hz=2.0))
    viewer = Viewer(feed.open(OPERATOR, 1000))
    for _ in range(40):
        await clock.advance(0.05)
    assert len(viewer.of("frame")) <= 5
    await viewer.leave()


async def test_who_reads_slowly_gets_the_latest_frame_only(clock: LoopClock) -> None:
    views = views_of_two()
    feed = Feed(views, OPTIONS)
    fast, slow = Viewer(feed.open(OPERATOR, 2)), feed.open(OPERATOR, 2)
    assert b"hello" in await anext(slow)
    for _ in range(10):
        await clock.advance(0.5)
    views.views = []
    await clock.advance(0.5)
    frame = (await anext(slow)).decode()
    assert '"replicas":[]' in frame
    await fast.leave()
    await slow.aclose()  # type: ignore[attr-defined]


async def test_engines_that_cannot_be_asked_show_nothing(clock: LoopClock) -> None:
    async def fail(first_events: object) -> list[bytes]:
        raise EngineError("nobody answers")

    viewer = Viewer(Feed(fail, OPTIONS).open(OPERATOR, 2))
    await clock.advance(0.6)
    await clock.advance(0.6)
    assert viewer.of("frame")[-1] == {"replicas": []}
    await viewer.leave()


async def test_each_replica_is_asked_for_the_events_that_are_not_known(clock: LoopClock) -> None:
    views = views_of_two()
    viewer = Viewer(Feed(views, OPTIONS).open(OPERATOR, 2))
    await clock.advance(0.1)
    await clock.advance(0.6)
    assert views.asked[:2] == [{}, {"a": 2}]
    await viewer.leave()


@pytest.mark.parametrize("is_drained", [True, False])
async def test_streams_end_before_the_ingress_or_after_a_while(
    clock: LoopClock, is_drained: bool
) -> None:
    feed = Feed(views_of_two(), OPTIONS)
    viewer = Viewer(feed.open(OPERATOR, 2))
    await clock.advance(0.5)
    if is_drained:
        await feed.close()
        await clock.advance(1)
        with pytest.raises(TooManyViewers):
            feed.open(OPERATOR, 2)
    else:
        await clock.advance(MAX_STREAM_S)
        await clock.advance(1)
    await settle()
    assert viewer.is_over
    assert feed.num_viewers == 0
