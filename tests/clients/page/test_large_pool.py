"""The block map of a pool as large as a GPU's, drawn five times a second."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.clients.page.browser import Visit
from tests.clients.page.large_pool import (
    NUM_BLOCKS,
    NUM_REQUESTS,
    TABLE_LEN,
    holders,
    large_pool,
    num_used,
)

pytestmark = pytest.mark.clients

NUM_FRAMES, NUM_KEYS = 20, 10
# keeps the words of each frame that is drawn, counts those of the screen, and for each key those of
# the server that were drawn before it was answered
WATCH = """canvas => {
  window.drawn = [], window.keys = [], window.screens = 0;
  const times = [];
  new MutationObserver(() => {
    drawn.push(canvas.getAttribute("aria-label"));
    times.push(performance.now());
  }).observe(canvas, { attributeFilter: ["aria-label"] });
  canvas.addEventListener("keydown", (event) => {
    keys.push(times.filter((time) => time > event.timeStamp).length);
  });
  const count = () => { screens++; requestAnimationFrame(count); };
  count();
}"""
DRAWN = """count => new Promise((done) => {
  const look = () => (drawn.length < count ? requestAnimationFrame(look) : done(
    [drawn, keys, screens]));
  look();
})"""
# the words of one moment, and the colour in the middle of each block
COLOURS = """(canvas, [count, columns]) => {
  const cell = canvas.clientHeight / Math.ceil(count / columns);
  const ratio = canvas.width / canvas.clientWidth, { width, height } = canvas;
  const { buffer } = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const pixels = new Uint32Array(buffer), found = [];
  for (let block = 0; block < count; block++) {
    const x = (block % columns + 0.5) * cell, y = (Math.floor(block / columns) + 0.5) * cell;
    found.push(pixels[Math.floor(y * ratio) * width + Math.floor(x * ratio)]);
  }
  return [canvas.getAttribute("aria-label"), found.join(" ")];
}"""


@pytest.fixture
def looking(browser: Browser) -> Iterator[Visit]:
    """Somebody who looks at the map with as many frames in a second as a server sends."""

    def hasten(route: Route) -> None:
        route.continue_(url=re.sub("hz=.*", "hz=5", route.request.url))

    with large_pool() as url:
        visit = Visit(browser, url, "")
        visit.page.route("**/ui/api/stream*", hasten)
        visit.page.reload()
        expect(visit.status).to_have_text("live · operator")
        visit.open("KV cache")
        yield visit
        visit.check(url, may_fail=False)


def number_of(words: str) -> int:
    """Which snapshot the words of a map are of."""
    [used] = re.findall(r"([\d,]+) in use", words)
    return int(used.replace(",", "")) - num_used(0)


def sent_to(looking: Visit) -> list[int]:
    """Which snapshots the page has been sent, in order."""
    frames = re.findall(r"^event: frame\ndata: (.*)\n\n", looking.received(), re.MULTILINE)
    replicas: list[dict[str, Any]] = [json.loads(frame)["replicas"][0] for frame in frames]
    return [replica["table_lens"][-1] - TABLE_LEN for replica in replicas]


def row_len(canvas: Locator, tip: Locator) -> int:
    """Blocks in a row of the map: where the key for the block below leads from the first one."""
    canvas.press("ArrowDown")
    block = tip.locator("strong")
    expect(block).to_be_visible()
    below = int((block.text_content() or "").removeprefix("Block "))
    canvas.press("Escape")
    expect(tip).to_be_hidden()
    return below


def test_every_block_of_a_large_pool_has_its_colour(looking: Visit) -> None:
    canvas, tip = looking.main.locator("canvas"), looking.main.locator(".tip")
    words, found = canvas.evaluate(COLOURS, [NUM_BLOCKS, row_len(canvas, tip)])
    colours: dict[str, set[str]] = defaultdict(set)
    for holder, colour in zip(holders(number_of(words)), found.split(), strict=True):
        colours[holder].add(colour)
    assert {holder: each for holder, each in colours.items() if len(each) > 1} == {}
    own = [colours.pop(str(place)) for place in range(NUM_REQUESTS)]
    assert all(one != next_one for one, next_one in pairwise(own))
    others = {colour for each in colours.values() for colour in each}
    assert len(others) == len(colours) == 3
    assert not any(each & others for each in own)


def test_a_large_pool_is_drawn_with_every_frame_while_keys_are_answered(looking: Visit) -> None:
    canvas, tip = looking.main.locator("canvas"), looking.main.locator(".tip")
    canvas.evaluate(WATCH)
    for block in range(1, NUM_KEYS + 1):
        canvas.press("ArrowRight")
        expect(tip.locator("strong")).to_have_text(f"Block {block}")
    drawn, waits, num_screens = looking.page.evaluate(DRAWN, NUM_FRAMES)
    numbers, sent = [number_of(words) for words in drawn], sent_to(looking)
    first = sent.index(numbers[0])
    assert numbers == sent[first : first + len(numbers)]
    # the browser showed what was drawn, and a key waited for one frame at the most
    assert num_screens > len(drawn)
    assert len(waits) == NUM_KEYS
    assert max(waits) <= 1
