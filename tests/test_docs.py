"""What the documentation promises of itself: lengths, links, and one headline a run."""

import ast
import re
import string
from pathlib import Path

import pytest

from app import limits
from tests import ROOT

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "load_tests").rglob("*.md"),
]
# [text](target) and ![text](target); a target in angle brackets may have spaces
LINK = re.compile(r"\]\(<?([^)>]+)>?\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = (heading.lower().replace("`", "") for heading in HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def is_broken(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return False
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors(target)


@pytest.mark.parametrize(("page", "most"), [("README.md", 130), ("ARCHITECTURE.md", 150)])
def test_first_pages_are_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= most


def test_relative_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(prose(page))]
    assert not [(name(page), link) for page, link in links if is_broken(page, link)]


def test_broken_links_are_noticed() -> None:
    readme = ROOT / "README.md"
    assert is_broken(readme, "docs/no-such-page.md")
    assert is_broken(readme, "docs/api.md#no-such-heading")
    assert not is_broken(readme, "docs/api.md#pinned-prefixes")
    assert LINK.findall("see [a](b.md), ![c](d.svg)") == ["b.md", "d.svg"]


def test_the_log_has_one_headline_a_run() -> None:
    log = ROOT / "load_tests" / "results" / "LOG.md"
    long = [line for line in log.read_text(encoding="utf-8").splitlines() if len(line) > 200]
    assert not long


def test_a_reader_finds_the_main_pages_in_two_clicks() -> None:
    first = set(LINK.findall(prose(ROOT / "README.md")))
    assert first >= {
        "docs/serving-a-model.md",
        "docs/configuration.md",
        "docs/structures.md",
        "docs/benchmarks.md",
        "docs/paper-figures.md",
    }


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = {page.name for page in folder.glob("[0-9]*.md")}
    assert pages == set(LINK.findall(prose(folder / "README.md")))


def test_every_package_has_a_line() -> None:
    page = (ROOT / "docs" / "structures.md").read_text("utf-8")
    section = page[page.index("## Packages") : page.index("## Block tables")]
    first_cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    listed = [name for cell in first_cells for name in re.findall(r"`([\w/]+)`", cell)]
    found = {
        str(path.parent.relative_to(ROOT))
        for folder in ("app", "engine", "kernels")
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(found - {"app", "engine"} | {"load_tests"})


def test_words_of_our_own_are_used_where_the_page_says() -> None:
    page = (ROOT / "docs" / "structures.md").read_text("utf-8")
    section = page[page.index("## Words that") : page.index("## The classes")]
    rows = re.findall(r"^\| ([\w ]+) \| .* \| `([\w/.]+)` \|$", section, re.MULTILINE)
    assert len(rows) == section.count("`") // 2 > 0
    for word, module in rows:
        source = (ROOT / module).read_text("utf-8").lower()
        assert word in source.replace("_", " "), word


# a class of the project at the beginning of a row, by number or by letter
ROW = re.compile(r"^\| (\d+|[a-z]) \| `(\w+)` \| `([\w.]+)` \|", re.MULTILINE)


def path_of_token_ids() -> str:
    """The section with all classes that a prompt's token ids pass."""
    page = (ROOT / "docs" / "structures.md").read_text("utf-8")
    return page[page.index("## The classes that a prompt's token ids pass") :]


def source_of(name: str, module: str) -> str:
    """The source of a class, which must be in that module."""
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")
    [found] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return ast.get_source_segment(source, found) or ""


def test_the_path_of_token_ids_is_short_and_its_classes_are_where_the_page_says() -> None:
    rows = ROW.findall(path_of_token_ids())
    handling = [mark for mark, _, _ in rows if mark.isdigit()]
    carrying = [mark for mark, _, _ in rows if not mark.isdigit()]
    assert handling == [str(number) for number in range(1, len(handling) + 1)]
    assert carrying == list(string.ascii_lowercase[: len(carrying)])
    assert min(len(handling), len(carrying)) > 0
    assert 25 < len(rows) <= 35
    for _, name, module in rows:
        assert source_of(name, module)


def test_each_class_on_the_path_of_token_ids_has_a_row_of_its_own() -> None:
    """Counted one by one: none stands behind another one."""
    sources = [
        path for folder in ("app", "engine", "kernels") for path in (ROOT / folder).rglob("*.py")
    ]
    classes = {
        name
        for path in sources
        for name in re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    section = path_of_token_ids()
    named = [word for word in re.findall(r"\w+", section) if word in classes]
    assert named == [name for _, name, _ in ROW.findall(section)]


def test_who_carries_messages_does_not_look_inside() -> None:
    for mark, name, module in ROW.findall(path_of_token_ids()):
        if not mark.isdigit():
            assert not re.search(r"\.(de|en)code\(", source_of(name, module)), name


def named_tests(page: Path) -> list[tuple[str, str]]:
    """Modules and tests that a page names."""
    return re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if named_tests(page)], ids=name)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    missing = [
        f"{module}::{test}"
        for module, test in named_tests(page)
        if not (ROOT / module).exists() or f"def {test}(" not in (ROOT / module).read_text()
    ]
    assert not missing


def test_every_report_was_tried() -> None:
    row = r"^\| (\d+) \| \[.*`tests/.*` \|$"
    rows = re.findall(row, (ROOT / "docs/reports.md").read_text(), re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 86))


def test_every_attack_has_a_test_or_a_reason() -> None:
    page = (ROOT / "docs/security.md").read_text()
    advisories = re.findall(r"^\| (\d+) \|.* \| ([^|]+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in advisories] == list(range(1, 40))
    open_once = page.partition("## Seen open once")[2].partition("## ")[0]
    cells = re.findall(r"^\| .* \| ([^|]+) \|$", open_once, re.MULTILINE)[1:]
    assert len(cells) == 8
    shown = re.compile(r"`tests/[\w/]+\.py::test_\w+`|none: ")
    assert not [cell for cell in (*dict(advisories).values(), *cells) if not shown.match(cell)]


def test_limits_of_heads_are_those_of_the_code() -> None:
    page = (ROOT / "docs/security.md").read_text()
    for row in (
        f"| header of {limits.MAX_HEADER_BYTES >> 10} KiB | 431",
        f"| {limits.MAX_HEADERS} headers | 431",
        f"| {limits.MAX_HEAD_BYTES >> 10} KiB of headers | 431",
        f"| URL of {limits.MAX_URL_BYTES >> 10} KiB | 414",
        f"| head within {limits.HEAD_S:g} s | 408",
        f"| body within `deadlines.upload_s` ({limits.UPLOAD_S:g} s) | 408",
        f"| client that reads nothing for {limits.WRITE_S:g} s | cut off",
    ):
        assert row in page
