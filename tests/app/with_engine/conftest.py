from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.model_config import read_model_config
from tests.app.api.server import MAX_MODEL_LEN
from tests.app.text.tokenizers import chatml_tokenizer
from tests.app.with_engine.reference import EOS, make_model
from tests.fakes.inline_engine import InlineEngineClient


@pytest.fixture(scope="package")
def reference() -> Any:
    return make_model()


@pytest.fixture(scope="package")
def client(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> InlineEngineClient:
    folder: Path = tmp_path_factory.mktemp("model")
    reference.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(chatml_tokenizer().to_json(), encoding="utf-8")
    config = EngineConfig.from_options(
        model_path=str(folder),
        model=read_model_config(folder),
        dtype="float32",
        device="cpu",
        num_blocks=512,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=MAX_MODEL_LEN,
        pinned_prefix_share=0.1,
        eos_token_ids=(EOS,),
    )
    return InlineEngineClient(config)
