"""One server and one browser for all scenarios; each looks at the page in a window of its own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.clients.page.browser import Visit, chromium
from tests.clients.page.page_server import PageServer

Open = Callable[..., Visit]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="package")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    running = PageServer(tmp_path_factory.mktemp("server"))
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def visit(browser: Browser, server: PageServer) -> Iterator[Open]:
    """Opens the page; see `Visit`. At the end each page is checked, see `Visit.check`."""
    visits: list[tuple[Visit, bool]] = []

    def look(key: str, *, may_fail: bool = False, **window: Any) -> Visit:
        visits.append((Visit(browser, server.url, key, **window), may_fail))
        return visits[-1][0]

    yield look
    for each, may_fail in visits:
        each.check(server.url, may_fail=may_fail)
