"""The page of models says what is served, and each row of it is tested against transformers."""

from engine.architectures.reference import table
from engine.architectures.registry import ARCHITECTURES, WRAPPERS
from tests import ROOT
from tests.engine.model.members import MEMBERS
from tests.engine.model.tiny import FAMILIES


def test_the_page_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert page == table(), "run python -m engine.architectures.reference > docs/models.md"


def test_each_row_and_wrapper_is_compared_with_transformers() -> None:
    tested = {model.__name__ for _, model, _ in (FAMILIES | MEMBERS).values()}
    assert tested == {*ARCHITECTURES, *WRAPPERS}
