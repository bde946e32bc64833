"""One server for all clients. They are collected only by `make test-clients`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployed.serve_run import Deployed, serve_run


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if "not clients" in config.option.markexpr else None


@pytest.fixture(scope="package")
def deployed() -> Iterator[Deployed]:
    with serve_run() as running:
        yield running


@pytest.fixture(scope="package")
def url(deployed: Deployed) -> str:
    return f"{deployed.url}/v1"


@pytest.fixture(autouse=True)
def _no_keys_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no client find settings of whoever runs the tests."""
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "LANGSMITH_TRACING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
