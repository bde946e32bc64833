"""https://pypi.org/project/llama-index-llms-openai-like: texts, streams, tools, typed answers."""

from pathlib import Path

import pytest

from tests.clients.apart import llama_index_client
from tests.clients.apart.environment import run_apart
from tests.clients.asked import MODEL

pytestmark = [pytest.mark.clients, pytest.mark.ray]


def test_it_is_answered(url: str, tmp_path: Path) -> None:
    run_apart(["python", llama_index_client.__file__, url, MODEL], tmp_path, 240.0)
