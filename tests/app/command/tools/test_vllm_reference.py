import shlex

from app.command.tools.from_vllm import translate
from app.command.tools.vllm_reference import reference
from tests import ROOT


def test_the_page_is_what_the_code_says() -> None:
    written = (ROOT / "docs/from-vllm.md").read_text(encoding="utf-8")
    assert written == reference(), "make docs writes it anew"


def test_the_command_of_the_page_translates_without_a_problem() -> None:
    [line] = [line for line in reference().splitlines() if line.startswith("pagoda config")]
    found = translate(shlex.split(line)[3:])
    assert found.problems == []
    assert found.args["tensor_parallel_size"] == 2
