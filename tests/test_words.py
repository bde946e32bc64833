"""The code speaks the words of the paper and of vLLM; the glossary is in ARCHITECTURE.md."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests import ROOT

# words that a reader of the paper would have to learn, and what is said instead
INSTEAD = {
    "told": "reported",
    "untold": "pending",
    "news": "output",
    "unborn": "pending fork",
    "bear_sibling": "fork_sibling",
    "Growth": "block table update",
    "Admitted": "Allocation",
    "Memory": "block manager",
    "Retirement": "deferred release",
    "Rehearsal": "warm-up",
    "Variant": "graph shape",
    "alone": "deterministic, single, only",
    "entries": "block indices, rows, items",
    "offsets": "block offsets, positions",
    "num_swap_slots": "num_swap_blocks",
    "learned": "the name of the model or layer",
    "copy_rate": "block copy time",
    "Job": "GenerationOptions",
    "_Plan": "GenerationOptions",
    "Edge": "RequestMiddleware",
    "Flight": "RecordedRequest",
    "all_beside": "peers",
    "sides": "systems",
}
FOLDERS = ("app", "engine", "kernels", "load_tests", "tests", "docs")
SUFFIXES = (".py", ".md", ".c", ".h", ".yaml")
WORDS = re.compile(rf"\b({'|'.join(INSTEAD)})\b")


def texts() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found = [path for path in (*inside, *ROOT.glob("*")) if path.suffix in SUFFIXES]
    return [path for path in found if "results" not in path.parts and path != Path(__file__)]


def test_the_words_of_the_field_are_used() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{number}": f"{match[0]}: say {INSTEAD[match[0]]}"
        for path in texts()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if (match := WORDS.search(line))
    }
    assert not found


def test_no_class_name_is_used_twice() -> None:
    counts = Counter(
        node.name
        for folder in ("app", "engine", "kernels", "load_tests")
        for path in (ROOT / folder).rglob("*.py")
        # parsing takes most of the time
        if "class " in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in counts.items() if count > 1]
