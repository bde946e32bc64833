"""The files of the page, which are part of the package and hold no data."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent / "static"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# nothing from elsewhere, no scripts or styles in the page itself, and no page around it
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",
    }
)


class PageFile:
    """One file of the page.

    Attributes:
        kind: its content type.
        etag: of its content.
    """

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.kind = _KINDS[path.suffix]
        self.etag = f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return all files by name; `index.html` is the page itself."""
    return {
        path.name: PageFile(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _KINDS
    }
