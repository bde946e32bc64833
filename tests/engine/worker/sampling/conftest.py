"""Rows of grammars for a model that can spell."""

from pathlib import Path

import pytest

from tests.engine.model.tiny import TinyModel
from tests.engine.whole.grammars.tokens import with_tokenizer
from tests.engine.worker.sampling.grammar_rows import GrammarRows


@pytest.fixture(scope="module")
def folder(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(tiny, tmp_path_factory.mktemp("spelling")).folder


@pytest.fixture
def rows(folder: Path) -> GrammarRows:
    return GrammarRows(folder)
