"""The list of bad inputs is complete, and says what is there."""

from tests import ROOT
from tests.app.api.bad_input.bodies import bad_bodies
from tests.app.api.bad_input.odd_requests import ODD_REQUESTS
from tests.app.api.bad_input.rows import ROWS, page
from tests.app.api.fields.rows import VOCAB
from tests.app.api.server import MAX_MODEL_LEN


def test_every_number_is_there_with_its_tests() -> None:
    assert sorted(ROWS) == list(range(1, 91))
    for _, _, modules in ROWS.values():
        for module in modules:
            assert (ROOT / "tests" / module).exists(), module


def test_rows_that_name_bodies_have_some() -> None:
    sent = {bad.number for bad in bad_bodies(VOCAB, MAX_MODEL_LEN)}
    named = {
        number
        for number, (_, _, modules) in ROWS.items()
        if any("test_bodies" in module for module in modules)
    }
    assert sent == named
    odd = {
        number
        for number, (_, _, m) in ROWS.items()
        if m[:1] == ("deployed/bad_requests/test_odd_requests.py",)
    }
    assert {request.number for request in ODD_REQUESTS} <= odd


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "bad-input.md").read_text("utf-8") == page()
