"""A server that dies while somebody looks."""

import pytest
from playwright.sync_api import expect

from tests.clients.page.conftest import Open
from tests.clients.page.page_server import ALICE, PageServer

pytestmark = pytest.mark.clients


def test_the_page_says_that_its_server_is_gone_and_goes_on(visit: Open, server: PageServer) -> None:
    looking = visit(ALICE, may_fail=True)
    looking.open("Playground")
    server.kill()
    expect(looking.status).to_have_text("no answer")
    expect(looking.page.get_by_role("alert")).to_contain_text("cannot be reached")
    looking.button("Send").click()
    expect(looking.card("Answer")).to_contain_text("The server cannot be reached")
    server.start()
    expect(looking.status).to_have_text("live", timeout=60_000)
    expect(looking.page.get_by_role("alert")).to_be_hidden()
    looking.page.get_by_label("max tokens").first.fill("4")
    looking.button("Send").click()
    expect(looking.card("Answer")).to_contain_text("4 output tokens")
