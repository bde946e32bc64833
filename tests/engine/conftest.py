"""A tiny model that every worker test may load."""

import pytest

from tests.engine.model.tiny import TinyModel, save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny("tied_llama3", tmp_path_factory.mktemp("tiny"))
