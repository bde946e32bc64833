import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.ui.files import HEADERS, page_files

CHECKS = Path(__file__).parent / "checks.mjs"
MAX_BYTES = 250_000


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("name", sorted(page_files()))
def test_no_file_has_scripts_inside_or_addresses_of_elsewhere(name: str) -> None:
    text = page_files()[name].content.decode()
    elsewhere = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert elsewhere <= {"http://www.w3.org/2000/svg"}
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text)


def test_everything_that_is_named_is_there() -> None:
    files = page_files()
    page = files["index.html"].content.decode()
    named = set(re.findall(r'(?:src|href)="ui/([^"]+)"', page))
    for name, file in files.items():
        if name.endswith(".js"):
            named |= set(re.findall(r'from "\./([^"]+)"', file.content.decode()))
    assert named == files.keys() - {"index.html"}


def test_the_page_is_small() -> None:
    assert sum(len(file.content) for file in page_files().values()) < MAX_BYTES


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_what_the_scripts_make_of_frames_and_events() -> None:
    done = subprocess.run(
        ["node", str(CHECKS)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "checked" in done.stdout
