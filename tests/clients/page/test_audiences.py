"""Who sees what: nobody without a key, a tenant, an operator."""

import pytest
from playwright.sync_api import expect

from tests.clients.page.browser import IN_USE, VIEWS, expect_map
from tests.clients.page.conftest import Open
from tests.clients.page.page_server import ALICE, BOB, NUM_BLOCKS, OPERATOR, PageServer
from tests.deployed.serve_run import CANARY, MODEL

pytestmark = pytest.mark.clients


def test_keys_are_asked_for_and_stay_in_the_tab(visit: Open) -> None:
    looking = visit("", may_fail=True)
    expect(looking.status).to_have_text("key needed")
    expect(looking.page.get_by_role("alert")).to_contain_text("This server has keys")
    looking.button("Enter keys").click()
    dialog = looking.page.get_by_role("dialog", name="Keys")
    dialog.get_by_label("API key").fill(ALICE)
    dialog.get_by_label("Operator's key").fill(OPERATOR)
    dialog.get_by_role("button", name="Use them").click()
    expect(looking.status).to_have_text("live · operator")
    expect(looking.page.get_by_role("alert")).to_be_hidden()
    looking.page.reload()
    expect(looking.status).to_have_text("live · operator")
    assert not [each for each in looking.addresses if ALICE in each or OPERATOR in each]
    other = looking.page.context.new_page()
    other.goto("/ui")
    expect(other.locator("#status")).to_have_text("key needed")


def test_an_operator_sees_metrics_and_settings(visit: Open) -> None:
    looking = visit(OPERATOR)
    expect(looking.main.locator(".tile", has_text="Preemptions")).to_be_visible()
    expect(looking.button("Stress it")).to_be_visible()
    looking.open("Settings")
    expect(looking.card("This server")).to_contain_text(MODEL)
    looking.page.get_by_label("Filter options").fill("num_blocks")
    cells = looking.card("Options").locator("td")
    expect(cells).to_have_text(["num_blocks", str(NUM_BLOCKS), "set"])
    looking.page.get_by_label("Filter options").fill("")
    looking.page.get_by_label("only what differs").check()
    expect(looking.card("Options").locator("td", has_text="default")).to_have_count(0)


def test_a_tenant_sees_nothing_of_another(visit: Open, server: PageServer) -> None:
    alice, bob = visit(ALICE), visit(BOB)
    bob.open("Playground")
    # in one piece
    bob.page.get_by_label("stream").uncheck()
    bob.page.get_by_label("Your message or prompt").fill(f"Say {CANARY}.")
    bob.page.get_by_text("All parameters").click()
    bob.page.get_by_label("Further fields as JSON").fill(f'{{"guided_choice": ["{CANARY}"]}}')
    with server.generating(BOB, f"It says {CANARY}."):
        bob.button("Send").click()
        expect(bob.card("Answer").locator(".said")).to_have_text(CANARY)
        bob.open("Requests")
        own = bob.main.locator(".req", has_text="running").get_by_role("button").first
        secrets = [CANARY, own.get_attribute("data-id") or ""]
        for view in VIEWS:
            alice.open(view)
        alice.open("KV cache")
        expect_map(alice, IN_USE)
        expect(alice.card("Who holds what")).to_contain_text("Nobody holds blocks")
    alice.open("Settings")
    expect(alice.card("Options")).to_contain_text("For operators")
    for secret in secrets:
        assert secret in bob.received()
        assert secret not in alice.received()
    alice.open("Overview")
    expect(alice.button("Stress it")).to_be_hidden()
    expect(alice.main.locator(".tile", has_text="Preemptions")).to_have_count(0)
