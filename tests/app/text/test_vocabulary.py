import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from app.text.vocabulary import Vocabulary
from engine.errors import ConfigError
from tests.app.text.tokenizers import byte_level_backend, metaspace_backend


def test_byte_fallback_tokens_stand_for_bytes() -> None:
    vocabulary = Vocabulary(metaspace_backend())
    assert vocabulary.piece(metaspace_backend().get_vocab()["<0xE2>"]) == b"\xe2"
    assert vocabulary.drops_first_space


def test_control_tokens_are_known() -> None:
    vocabulary = Vocabulary(byte_level_backend())
    assert vocabulary.special_texts == {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"}


def test_an_added_token_outside_the_alphabet_stands_for_its_text() -> None:
    backend = Backend.from_str(byte_level_backend().to_str())
    backend.add_tokens(["<a b>", "日本"])
    vocabulary = Vocabulary(backend)
    for text in ("<a b>", "日本"):
        assert vocabulary.piece(backend.get_vocab()[text]) == text.encode()


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Strip(" ", 2, 0)])
def test_other_decoders_are_refused(decoder: decoders.Decoder | None) -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ConfigError, match="decoder"):
        Vocabulary(backend)
