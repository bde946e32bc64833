"""Whoever looks at the page, on whatever, can read it and use it."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.clients.page.browser import VIEWS, serious
from tests.clients.page.conftest import Open
from tests.clients.page.page_server import ALICE, BOB, OPERATOR, PageServer

pytestmark = pytest.mark.clients

MOVING = """[...document.querySelectorAll("*")].filter((element) => {
  const style = getComputedStyle(element);
  return style.animationName !== "none" || parseFloat(style.transitionDuration) > 0;
}).length + document.getAnimations().length"""


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_view_is_for_everybody(
    colours: str, width: int, visit: Open, server: PageServer, tmp_path: Path
) -> None:
    size = {"width": width, "height": 900}
    looking = visit(OPERATOR, color_scheme=colours, viewport=size)
    with (
        server.generating(ALICE, "The three best places in Kyoto are", n=3),
        server.generating(BOB, "Pagodas", n=2, use_beam_search=True),
    ):
        for view in VIEWS:
            looking.open(view)
            expect(looking.main.locator(".empty", has_text="yet")).to_have_count(
                1 if view in ("Beams", "Playground") else 0
            )
            # looked at by people: see CONTRIBUTING.md
            looking.page.screenshot(path=tmp_path / f"{view}.png", full_page=True)
            assert serious(Axe().run(looking.page).response) == [], view
            assert looking.page.evaluate("document.documentElement.scrollWidth") <= width, view


def test_keys_do_for_all_views(visit: Open) -> None:
    looking = visit(OPERATOR)
    press = looking.page.keyboard.press
    press("Tab")
    expect(looking.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("Tab")
    expect(looking.tab("Overview")).to_be_focused()
    for view in [*VIEWS[1:], "Overview"]:
        press("ArrowRight")
        expect(looking.tab(view)).to_be_focused()
        expect(looking.tab(view)).to_have_attribute("aria-selected", "true")
        expect(looking.page).to_have_title(f"{view} · Pagoda")
    press("ArrowLeft")
    expect(looking.tab("Settings")).to_be_focused()
    # one stop for all tabs, then what is beside them
    press("Tab")
    expect(looking.button("Keys")).to_be_focused()
    press("Enter")
    expect(looking.page.get_by_role("dialog", name="Keys")).to_be_visible()
    press("Escape")
    expect(looking.page.get_by_role("dialog", name="Keys")).to_have_count(0)


def test_nothing_moves_for_those_who_do_not_want_it(visit: Open, server: PageServer) -> None:
    looking = visit(OPERATOR, reduced_motion="reduce")
    with server.generating(ALICE, "Once", n=2):
        for view in VIEWS:
            looking.open(view)
            assert looking.page.evaluate(MOVING) == 0, view
