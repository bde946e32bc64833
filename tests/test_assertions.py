"""No safety depends on an assertion: `python -O` leaves them out."""

import ast
import os
import subprocess
import sys

from tests import ROOT

# what looks at input from outside: requests, packets of other processes, model files, plans
GUARDS = [
    *(ROOT / "app").rglob("*.py"),
    *(ROOT / "engine/executor").glob("*channel*.py"),
    ROOT / "engine/executor/codec.py",
    ROOT / "engine/core/scheduling/limits.py",
    ROOT / "engine/model_config.py",
    ROOT / "engine/model_files.py",
    ROOT / "engine/runtime/messages.py",
    ROOT / "engine/runtime/replica/admission.py",
    ROOT / "engine/worker/plan_check.py",
]


def guarding(source: str) -> list[int]:
    """Lines of assertions that say more than that something is not None, which is for mypy."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert) and not _is_for_mypy(node.test)
    ]


def _is_for_mypy(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    )


def test_no_assertion_guards_anything() -> None:
    found = {str(path.relative_to(ROOT)): guarding(path.read_text()) for path in GUARDS}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_rule_sees_what_guards() -> None:
    assert guarding("assert x is not None\nassert size < 5, size\nassert x") == [2, 3]


def test_bad_input_is_refused_without_assertions() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "tests.app.api.reports.refusals"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
