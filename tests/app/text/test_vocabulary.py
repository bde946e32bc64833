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
    assert vocabulary.special_ids == {0, 1, 2}
    for text in ("<a b>", "日本"):
        assert vocabulary.piece(backend.get_vocab()[text]) == text.encode()


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Strip(" ", 2, 0)])
def test_other_decoders_are_refused(decoder: decoders.Decoder | None) -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ConfigError, match="decoder"):
        Vocabulary(backend)


def test_ids_that_no_token_has_stand_for_nothing() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 3}, unk_token="a"))
    backend.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary(backend)
    assert [vocabulary.piece(token) for token in range(6)] == [b"a", b"", b"", b"b", b"", b""]
    assert len(vocabulary) == 4


def test_bytes_that_do_not_print_are_moved_to_other_characters() -> None:
    """U+0120 is a space in the spelling of byte-level BPE, and U+010A a line break."""
    backend = Backend(models.WordLevel({"\u0120a\u010a": 0, "\u00e9": 1}, unk_token="a"))
    backend.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary(backend)
    assert vocabulary.pieces == [b" a\n", b"\xe9"]
    assert vocabulary.longest_piece == 3
    assert not vocabulary.drops_first_space


@pytest.mark.parametrize(("scheme", "drops"), [("always", True), ("never", False)])
def test_a_metaspace_decoder_says_whether_a_first_space_is_its_own(
    scheme: str, drops: bool
) -> None:
    backend = Backend(models.WordLevel({"\u2581a": 0}, unk_token="\u2581a"))
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    vocabulary = Vocabulary(backend)
    assert vocabulary.pieces == [b" a"]
    assert vocabulary.drops_first_space is drops
