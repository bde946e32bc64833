"""Each line of the log about trouble has a row that says what to do."""

import ast
import re
from collections.abc import Iterator

from tests import ROOT

_LEVELS = ("warning", "error", "exception", "critical")
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)


def events() -> Iterator[str]:
    """Yield the first word of each line that is logged as a warning or worse."""
    for folder in ("app", "engine"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and ast.unparse(node.func.value) == "logger"
                    and node.func.attr in _LEVELS
                ):
                    yield ast.literal_eval(node.args[0]).split(" ")[0]


def test_each_line_of_trouble_has_a_row_and_each_row_a_line() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    rows = [name for name, _, _ in _ROW.findall(page)]
    assert rows == sorted(set(rows))
    assert set(rows) == set(events())
