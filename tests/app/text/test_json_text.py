import pytest

from app.text.json_text import ESCAPED, json_of, stands_as_it_is


def test_characters_beyond_ascii_stand_as_they_are() -> None:
    assert json_of([{"a": "€ 東"}]) == '[{"a":"€ 東"}]'.encode()


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\x04", "a\x1fb"])
def test_what_json_writes_otherwise_does_not_stand_as_it_is(text: str) -> None:
    assert not stands_as_it_is(text)
    assert json_of(text) != f'"{text}"'.encode()


@pytest.mark.parametrize("text", ["<|im_end|>", "</s>", "<€>", "[tool]"])
def test_a_common_control_token_stands_as_it_is(text: str) -> None:
    assert stands_as_it_is(text)
    assert json_of(text) == f'"{text}"'.encode()


def test_control_characters_are_escaped() -> None:
    assert ESCAPED in (json_of("\x04") or b"")


def test_what_is_no_json_has_none() -> None:
    assert json_of(["\ud800"]) is None
    assert json_of(object()) is None
