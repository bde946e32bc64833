"""A line of the file is a key, and what its requests may take."""

import hashlib
from pathlib import Path

import pytest

from app.protocol.api_settings import KeyLimits
from app.settings.api_keys import read_api_keys
from engine.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text)
    return path


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def test_keys_are_digests_with_their_limits(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "plain\n\n  spaced  \nbig weight=3 queue_share=0.5 max_concurrent=8 "
        "tokens_per_minute=60000\n",
    )
    assert read_api_keys(path) == {
        digest("plain"): KeyLimits(),
        digest("spaced"): KeyLimits(),
        digest("big"): KeyLimits(
            weight=3.0, queue_share=0.5, max_concurrent=8, tokens_per_minute=60000
        ),
    }
    assert read_api_keys(None) == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("weigth=3", "behind a key may stand weight="),
        ("weight", "weight must be a number above 0"),
        ("weight=0", "weight must be a number above 0"),
        ("weight=nan", "weight must be a number above 0"),
        ("queue_share=1.5", "at most 1"),
        ("max_concurrent=1.5", "max_concurrent must be a whole number"),
        ("tokens_per_minute=-1", "above 0"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_without_its_key(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = written(tmp_path, f"first\nsecret {line}\n")
    with pytest.raises(ConfigError, match=reason) as refused:
        read_api_keys(path)
    assert "line 2" in str(refused.value)
    assert "secret" not in str(refused.value)
