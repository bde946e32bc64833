from app.command.parser import COMMANDS
from app.command.reference import reference
from tests import ROOT


def test_the_page_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
    assert page == reference(), "make docs writes it anew"


def test_every_command_has_a_section_and_no_options_of_the_configuration() -> None:
    page = reference()
    for name in COMMANDS:
        assert f"\n## {name}\n" in page
    assert "| `--max-num-batched-tokens" not in page
    assert "| `--set OPTION=VALUE` |" in page
