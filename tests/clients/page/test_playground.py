"""What can be asked in the Playground, and what is shown of the answer."""

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.clients.page.browser import Visit
from tests.clients.page.conftest import Open
from tests.clients.page.page_server import ALICE, PageServer

pytestmark = pytest.mark.clients


def ask(looking: Visit, fields: dict[str, int]) -> Locator:
    """Fill in the form and send it; returns the card with the answer."""
    looking.open("Playground")
    for label, value in fields.items():
        looking.card("Ask").get_by_label(label, exact=True).fill(str(value))
    looking.button("Send").click()
    return looking.card("Answer")


def expect_the_end(looking: Visit) -> None:
    expect(looking.card("Ask").get_by_role("button", name="Stop")).to_be_disabled()


def test_a_chat_is_streamed_and_goes_on(visit: Open, server: PageServer) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    looking = visit(ALICE, permissions=permissions)
    answer = ask(looking, {"max tokens": 100})
    # the first words come while it may still be stopped
    expect(answer.locator(".said")).to_have_text(re.compile(r"\w"))
    expect(looking.card("Ask").get_by_role("button", name="Stop")).to_be_enabled()
    expect_the_end(looking)
    expect(answer).to_contain_text(re.compile(r"first token after .* prompt tokens .* output"))
    turns = looking.card("Ask").locator(".turn")
    expect(turns).to_have_text([re.compile("^You Why do pagodas"), re.compile("^Model .")])
    looking.button("Copy as curl").click()
    expect(looking.button("Copied")).to_be_visible()
    words = looking.page.evaluate("navigator.clipboard.readText()")
    assert words.startswith(f"curl -N {server.url}/v1/chat/completions")
    assert ALICE not in words
    looking.page.get_by_label("Your message or prompt").fill("And in one?")
    ask(looking, {"max tokens": 8})
    expect(turns).to_have_count(4)


def test_choices_are_shown_beside_each_other(visit: Open) -> None:
    looking = visit(ALICE)
    answer = ask(looking, {"max tokens": 64, "n (choices)": 3})
    expect(answer.get_by_role("heading", name="choice")).to_have_text(
        ["choice 0", "choice 1", "choice 2"]
    )
    expect_the_end(looking)
    for text in answer.locator(".said").all_inner_texts():
        assert text.strip()
    expect(answer).to_contain_text(re.compile(r"KV saved \d+ %"))


def test_an_answer_goes_on_from_another_token(visit: Open) -> None:
    looking = visit(ALICE)
    looking.open("Playground")
    looking.page.get_by_role("radio", name="Completion").click()
    looking.page.get_by_label("probabilities").check()
    prompt = looking.page.get_by_label("Your message or prompt")
    prompt.fill("The capital of France is")
    answer = ask(looking, {"max tokens": 6, "temperature": 0})
    expect_the_end(looking)
    tokens = answer.get_by_role("group", name="Tokens by probability").get_by_role("button")
    expect(tokens).to_have_count(6)
    expect(answer).to_contain_text(re.compile(r"perplexity \d"))
    kept = "".join(tokens.all_text_contents()[:2])
    tokens.nth(2).click()
    expect(answer.locator(".options button")).to_have_count(5)
    other = answer.locator(".options button:enabled").first
    chosen = other.locator("code").text_content() or ""
    other.click()
    # as shown, ends of lines are arrows
    wanted = f"The capital of France is{kept}{chosen}".replace("↵", "\n")
    expect(prompt).to_have_value(wanted)
    expect_the_end(looking)
    expect(tokens).to_have_count(6)


def test_a_text_is_scored(visit: Open) -> None:
    looking = visit(ALICE)
    looking.open("Playground")
    looking.page.get_by_role("radio", name="Score a text").click()
    looking.page.get_by_label("Your message or prompt").fill("Pagodas are tall.")
    looking.button("Score").click()
    tokens = looking.card("Answer").get_by_role("group").get_by_role("button")
    expect(tokens.first).to_have_attribute("title", "no probability")
    expect(tokens.last).to_have_attribute("title", re.compile(r"\d %"))


def test_a_twin_in_a_crowd_is_equal(visit: Open) -> None:
    looking = visit(ALICE)
    looking.open("Playground")
    looking.page.get_by_label("max tokens").first.fill("16")
    looking.button("Compare").click()
    verdict = looking.card("Deterministic twin").get_by_role("status")
    expect(verdict).to_have_text("Equal: 16 tokens and 16 log-probabilities, to the last bit.")
