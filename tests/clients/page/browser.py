"""A browser that looks at the page, and all that it has to complain of."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect, sync_playwright

from tests.clients.page.page_server import OPERATOR

VIEWS = ("Overview", "KV cache", "Requests", "Beams", "Playground", "Settings")
IN_USE = re.compile(r"Block map\..* [1-9]\d* in use")
IDLE = re.compile(r"Block map\..* 0 in use")
NO_BROWSER = (
    "no browser: install your system's chromium, or one by "
    "`.venv/bin/playwright install --with-deps chromium`"
)
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# machines that run tests are busy
_LIMIT_MS = 30_000
# keeps what the page is sent, which it gets by `fetch` only, and reports what its policy forbids
_WATCH = """
const ask = window.fetch;
window.received = [];
window.fetch = async (...request) => {
  const response = await ask(...request), read = response.clone().body;
  const keep = async () => {
    for await (const text of read.pipeThrough(new TextDecoderStream())) received.push(text);
  };
  keep().catch(() => {});
  return response;
};
addEventListener("securitypolicyviolation", (event) =>
  console.error(`forbidden by its policy: ${event.violatedDirective} ${event.blockedURI}`));
"""
# its policy forbids what `Page.wait_for_function` does
_FRAMES = """count => new Promise((done) => {
  const frames = () => received.join("").split("event: frame").length, wanted = frames() + count;
  const look = () => (frames() < wanted ? requestAnimationFrame(look) : done());
  look();
})"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the machine's browser; without one the test is skipped."""
    expect.set_options(timeout=_LIMIT_MS)
    found = [path for path in map(shutil.which, _PROGRAMS) if path]
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        program = next(iter(found), own)
        if not shutil.which(program):
            pytest.skip(NO_BROWSER)
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


class Visit:
    """Somebody who looks at the page in a window of their own.

    Attributes:
        page: of the browser.
        complaints: errors of scripts and of the console, among them what the page's policy forbids.
        addresses: of all requests.
    """

    def __init__(self, browser: Browser, url: str, key: str, **window: Any) -> None:
        """Open the page.

        Args:
            key: a tenant's or the operator's, as if it had been entered; empty for none.
            window: options of `Browser.new_context`.
        """
        context = browser.new_context(base_url=url, **window)
        context.set_default_timeout(_LIMIT_MS)
        context.add_init_script(_WATCH)
        if key:
            name = "pagoda.operator_key" if key == OPERATOR else "pagoda.api_key"
            context.add_init_script(f"sessionStorage.setItem({name!r}, {key!r})")
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._take)
        self.page.goto("/ui")
        if key:
            expect(self.status).to_have_text("live · operator" if key == OPERATOR else "live")

    def _take(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    @property
    def status(self) -> Locator:
        """What the page says of its connection."""
        return self.page.locator("#status")

    @property
    def main(self) -> Locator:
        """What the chosen view shows."""
        return self.page.get_by_role("main")

    def tab(self, view: str) -> Locator:
        return self.page.get_by_role("tab", name=view)

    def card(self, name: str) -> Locator:
        """A part of the view that is shown."""
        return self.main.get_by_role("region", name=name, exact=True)

    def open(self, view: str) -> None:
        """Choose a view."""
        self.tab(view).click()
        expect(self.page).to_have_title(f"{view} · Pagoda")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def received(self) -> str:
        """All that the page has been sent since it was loaded."""
        return "".join(self.page.evaluate("received"))

    def wait_for_frames(self, count: int) -> None:
        """Wait until the page has been sent so many more frames."""
        self.page.evaluate(_FRAMES, count)

    def check(self, url: str, *, may_fail: bool) -> None:
        """Check that the page had no errors and asked nobody but its server; close it.

        Args:
            may_fail: requests, since the server refuses some, or is not there.
        """
        self.page.context.close()
        allowed = "Failed to load resource" if may_fail else "\0"
        assert [each for each in self.complaints if not each.startswith(allowed)] == []
        own = (f"{url}/", f"blob:{url}/")
        assert [each for each in self.addresses if not each.startswith(own)] == []


def expect_map(looking: Visit, words: re.Pattern[str]) -> None:
    """Wait until the block map is read out so: `IN_USE` or `IDLE`."""
    expect(looking.main.get_by_role("img", name="Block map")).to_have_accessible_name(words)


def serious(found: dict[str, Any]) -> list[str]:
    """What axe takes for serious or worse, with where it is."""
    return [
        f"{rule['id']}: {json.dumps([node['html'] for node in rule['nodes']])}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
