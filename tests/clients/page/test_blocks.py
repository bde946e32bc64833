"""The block map, its twin in words, and the last 60 seconds of it."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.clients.page.browser import IDLE, IN_USE, expect_map
from tests.clients.page.conftest import Open
from tests.clients.page.page_server import (
    ALICE,
    BLOCK_SIZE,
    BOB,
    NUM_BLOCKS,
    OPERATOR,
    PageServer,
)

pytestmark = pytest.mark.clients

# of what the map is painted
COLOURS = """canvas => new Set(new Uint32Array(canvas.getContext("2d")
  .getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""


def test_the_map_and_its_table_say_the_same(visit: Open, server: PageServer) -> None:
    looking = visit(OPERATOR)
    with (
        server.generating(ALICE, "The three best places in Kyoto are " * 9, n=4),
        server.generating(BOB, "Pagodas"),
    ):
        looking.open("KV cache")
        rows = looking.card("Who holds what").locator("tbody tr")
        expect(rows).to_have_count(2)
        # read at one moment
        words, table = looking.main.evaluate(
            "main => [main.querySelector('canvas').getAttribute('aria-label'),"
            "[...main.querySelectorAll('tbody tr')].map((row) =>"
            "[...row.cells].map((cell) => cell.textContent))]"
        )
        assert words.startswith(f"Block map. {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens: ")
        used, shared = map(int, re.findall(r"(\d+) (?:in use|shared)", words))
        (_, _, fork, logical, physical, saved), (_, _, single, *_) = table
        assert (fork, single) == ("4", "1")
        assert sum(int(row[4]) for row in table) == used
        assert 0 < shared < int(physical) < int(logical)
        assert abs(float(saved.split()[0]) - 100 * (1 - int(physical) / int(logical))) < 1
        assert looking.main.locator("canvas").evaluate(COLOURS) > 4
        rows.first.get_by_role("button").click()
        cells = looking.card("Block table").get_by_role("list", name="Block table of choice 3")
        expect(cells.get_by_text("\N{MULTIPLICATION SIGN}4").first).to_be_visible()


def test_the_map_is_walked_by_keys(visit: Open) -> None:
    looking = visit(ALICE)
    looking.open("KV cache")
    looking.main.locator("canvas").focus()
    tip = looking.main.locator(".tip")
    for key, block in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        looking.page.keyboard.press(key)
        expect(tip.locator("strong")).to_have_text(f"Block {block}")
    looking.page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_stress_fills_the_map_until_it_is_stopped(visit: Open) -> None:
    looking = visit(OPERATOR)
    stress = looking.card("Stress")
    stress.get_by_label("requests").fill("12")
    stress.get_by_role("button", name="Stress it").click()
    expect(stress.get_by_role("status")).to_contain_text("12 requests are on their way")
    running = looking.main.locator(".tile", has_text="Requests running").locator(".value")
    expect(running).to_have_text(re.compile(r"^[1-9]"))
    expect_map(looking, IN_USE)
    expect(looking.card("The paper's figure 2, live")).to_contain_text("Orca (Max)")
    stress.get_by_role("button", name="Stop").click()
    expect(stress.get_by_role("status")).to_contain_text("Stopped")
    expect_map(looking, IDLE)


def test_the_last_minute_is_shown_again_and_exported(visit: Open, server: PageServer) -> None:
    looking = visit(ALICE)
    looking.open("KV cache")
    with server.generating(ALICE, "Once", n=2):
        expect_map(looking, IN_USE)
        looking.wait_for_frames(4)
    expect_map(looking, IDLE)
    moment = looking.page.get_by_label("Moment to show")
    moment.fill("-0.5")
    expect(looking.page.get_by_text("0.5 s ago")).to_be_visible()
    # half a second back each time
    canvas = looking.main.locator("canvas")
    for _ in range(100):
        moment.press("ArrowLeft")
        if IN_USE.match(canvas.get_attribute("aria-label") or ""):
            break
    else:
        pytest.fail("no moment of the last 50 s has blocks in use")
    looking.button("Live").click()
    expect_map(looking, IDLE)
    expect(looking.button("Live")).to_be_disabled()
    with looking.page.expect_download() as download:
        looking.button("Export").click()
    text = download.value.path().read_text()
    saved = json.loads(text)
    assert ALICE not in text
    assert saved["hello"]["block_size"] == BLOCK_SIZE
    replicas = [frame["replicas"][0] for frame in saved["frames"]]
    assert replicas[-1]["num_blocks"] == NUM_BLOCKS
    assert max(len(replica["owners"]) for replica in replicas) == 2
    assert saved["requests"]
