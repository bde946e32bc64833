import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.detokenizer import Detokenizer
from app.text.vocabulary import Vocabulary
from tests.app.text.tokenizers import byte_level_backend, metaspace_backend, spelled_vocabulary

BYTE_LEVEL = Vocabulary(byte_level_backend())
METASPACE = Vocabulary(metaspace_backend())
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def stream(vocabulary: Vocabulary, ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(vocabulary, skip_special=skip_special, starts_text=True)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@given(TEXT)
@settings(max_examples=100)
def test_byte_level_text_comes_back_from_its_tokens(text: str) -> None:
    ids = byte_level_backend().encode(text).ids
    deltas = stream(BYTE_LEVEL, ids, skip_special=False)
    assert "".join(deltas) == byte_level_backend().decode(ids, skip_special_tokens=False) == text
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


@given(st.lists(st.integers(0, len(BYTE_LEVEL) - 1), max_size=40), st.booleans())
@settings(max_examples=150)
def test_any_byte_level_ids_decode_as_in_one_shot(ids: list[int], skip_special: bool) -> None:
    deltas = stream(BYTE_LEVEL, ids, skip_special=skip_special)
    whole = byte_level_backend().decode(ids, skip_special_tokens=skip_special)
    assert "".join(deltas) == whole


@given(TEXT)
@settings(max_examples=100)
def test_metaspace_text_decodes_as_in_one_shot(text: str) -> None:
    ids = metaspace_backend().encode(text).ids
    deltas = stream(METASPACE, ids)
    assert "".join(deltas) == metaspace_backend().decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ["서울에서 만나요", "ภาษาไทย", "👨‍👩‍👧 family"])
def test_characters_are_never_cut(text: str) -> None:
    pieces = [bytes([byte]) for byte in range(256)]
    vocabulary = spelled_vocabulary(*pieces)
    deltas = stream(vocabulary, list(text.encode()))
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_incomplete_end_becomes_one_replacement_character() -> None:
    vocabulary = spelled_vocabulary("Price: ", b"\xe2\x82", b"\xac")
    assert stream(vocabulary, [0, 1]) == ["Price: ", "", "\ufffd"]
    # the end of a character whose beginning was in the prompt
    assert stream(vocabulary, [2]) == ["\ufffd", ""]


def test_control_tokens_are_left_out_or_spelled() -> None:
    vocabulary = spelled_vocabulary("a", "b", special=("<|end|>",))
    assert "".join(stream(vocabulary, [0, 2, 1])) == "ab"
    assert "".join(stream(vocabulary, [0, 2, 1], skip_special=False)) == "a<|end|>b"


def test_ids_without_a_token_have_no_text() -> None:
    assert "".join(stream(spelled_vocabulary("a"), [0, 7, 0])) == "aa"


def test_first_space_stays_when_a_text_goes_on() -> None:
    ids = metaspace_backend().encode("the dog", add_special_tokens=False).ids
    detokenizer = Detokenizer(METASPACE, skip_special=True, starts_text=False)
    assert "".join(map(detokenizer.push, ids)) == " the dog"


def test_only_the_first_space_of_a_text_is_dropped() -> None:
    ids = metaspace_backend().encode("the dog", add_special_tokens=False).ids
    assert "".join(stream(METASPACE, ids)) == "the dog"
    spaced = metaspace_backend().encode("  the", add_special_tokens=False).ids
    assert "".join(stream(METASPACE, spaced)) == "  the"


def test_a_fork_goes_on_from_the_same_half_of_a_character() -> None:
    vocabulary = spelled_vocabulary(b"\xe2\x82", b"\xac", b"\xad")
    first = Detokenizer(vocabulary, skip_special=True, starts_text=True)
    assert first.push(0) == ""
    second = first.fork()
    assert not second.is_complete
    assert (first.push(1), second.push(2)) == ("\u20ac", "\u20ad")
    assert first.is_complete
