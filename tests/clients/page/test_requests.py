"""Why a request took so long, and how a beam search grows."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.clients.page.browser import serious
from tests.clients.page.conftest import Open
from tests.clients.page.page_server import ALICE, OPERATOR, PageServer

pytestmark = pytest.mark.clients


def test_a_request_says_why_it_took_so_long(visit: Open, server: PageServer) -> None:
    looking = visit(ALICE)
    looking.open("Requests")
    newest = looking.main.locator(".req").first
    with server.generating(ALICE, "Once", n=2):
        expect(newest).to_contain_text("running")
        newest.get_by_role("button").first.click()
        expect(newest.locator(".why")).to_contain_text(re.compile(r"So far .* of which .*%"))
        expect(newest.locator(".why")).to_contain_text("2 choices")
    expect(newest.locator(".why")).to_contain_text(
        re.compile(r"It took .* of which .* (decoding|in prefill|in the queue)")
    )
    expect(newest.get_by_role("img")).to_have_accessible_name(re.compile(r"prefill .*, decode "))
    expect(newest).to_contain_text("ended")


def test_a_request_leads_to_its_block_tables(visit: Open, server: PageServer) -> None:
    looking = visit(OPERATOR)
    looking.open("Requests")
    newest = looking.main.locator(".req").first
    with server.generating(ALICE, "Once"):
        expect(newest).to_contain_text("running")
        newest.get_by_role("button").first.click()
        looking.button("Show its block tables").click()
        expect(looking.page).to_have_title("KV cache · Pagoda")
        expect(looking.card("Block table").get_by_role("list")).to_have_accessible_name(
            "Block table of sequence"
        )


def test_a_beam_search_is_seen_to_grow(visit: Open) -> None:
    # too narrow for the tree, which is scrolled
    looking = visit(ALICE, viewport={"width": 390, "height": 900})
    looking.open("Beams")
    tree, tables = looking.card("Beam tree"), looking.card("Its block tables")
    tree.get_by_label("width").fill("3")
    tree.get_by_label("tokens").fill("64")
    looking.button("Grow").click()
    expect(tree.get_by_role("status")).to_contain_text("Growing")
    expect(tables).to_contain_text("beam search, width 3")
    expect(tables).to_contain_text("saved by sharing")
    expect(tree.get_by_role("status")).to_contain_text(re.compile(r"Done: \d hypotheses"))
    expect(tree.locator(".run.best")).to_have_count(1)
    expect(tree.locator(".run .score")).to_have_count(3)
    # its last moment, and no more than that
    expect(tables).to_contain_text("ended · ")
    assert serious(Axe().run(looking.page).response) == []
