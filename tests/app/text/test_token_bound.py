"""No text has fewer tokens than its bound, whatever the tokenizer; most have few more."""

from functools import cache
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from app.text.token_bound import ONE_TOKEN, TokenBound, bound_of
from app.text.tokenizer import Tokenizer
from tests.app.text.tokenizers import (
    CHATML,
    NORMALIZERS,
    PRE_TOKENIZERS,
    byte_level_backend,
    lossy_backend,
    metaspace_backend,
    small_backend,
)

ALL = 10**9
# also what normalisers change, what spaces are spelled with, and tokens of several characters
PARTS = [
    *"aThe1.5\n\t ▁<>|é€東👨e\u0301\u0338\u212a\ufb01\u3000\u00a0", "  ", "The quick", " brown fox",
    "twenty", "tick-tock-go", "<|im_start|>", "<|im_end|>", "<s>", "[tool]",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS), max_size=40).map("".join) | st.text(max_size=40)
KINDS = [*product(NORMALIZERS, PRE_TOKENIZERS)]


def backend_of(base: Backend, **flags: bool) -> Backend:
    backend = Backend.from_str(base.to_str())
    backend.add_special_tokens([AddedToken(text, normalized=False, **flags) for text in ("<s>",)])
    backend.add_tokens([AddedToken("[tool]", **flags)])
    return backend


@cache
def tokenizers() -> dict[str, Tokenizer]:
    """By name; those of which nothing is known are left out."""
    bases = {f"{n}, {p}": small_backend(n, p) for n, p in KINDS}
    bases |= {"byte level": byte_level_backend(), "metaspace": metaspace_backend()}
    found = {
        f"{name} {flags}": Tokenizer(
            backend_of(base, **dict.fromkeys(flags, True)), {"bos_token": "<s>"}, CHATML
        )
        for name, base in bases.items()
        for flags in ((), ("lstrip", "rstrip"))
    }
    return {name: each for name, each in found.items() if each.at_least("a " * 9, ALL)}


@given(st.data(), TEXTS)
@example(None, "<s>" * 3)
def test_no_text_has_fewer_tokens(data: st.DataObject | None, text: str) -> None:
    chosen = tokenizers() if data is None else [data.draw(st.sampled_from(list(tokenizers())))]
    for name in chosen:
        tokenizer = tokenizers()[name]
        least = tokenizer.at_least(text, ALL)
        for add_special_tokens in (False, True):
            ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
            assert least <= len(ids), name


@given(st.data(), st.lists(TEXTS, max_size=4))
def test_no_conversation_has_fewer_tokens(data: st.DataObject, contents: list[str]) -> None:
    name = data.draw(st.sampled_from(list(tokenizers())))
    tokenizer = tokenizers()[name]
    rendered = tokenizer.render_chat([{"role": "user", "content": text} for text in contents])
    assert tokenizer.at_least(rendered, ALL) <= len(tokenizer.encode_rendered(rendered)), name


def test_of_these_tokenizers_something_is_known() -> None:
    known = {name for name in tokenizers() if name.endswith("()")}
    assert len(known) == 24
    assert not any(part in name for name in known for part in ("nfkc", "strip,"))


@pytest.mark.parametrize("base", [byte_level_backend(), metaspace_backend()])
def test_most_tokens_of_a_text_are_seen(base: Backend) -> None:
    tokenizer = Tokenizer(base, {}, CHATML)
    for text in ("The quick brown fox costs 12.50 euros!\n" * 20, "x7 y " * 100, "東京 " * 50):
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
        assert 0.7 * num_tokens < tokenizer.at_least(text, ALL)


def test_a_token_ends_between_bytes_that_no_piece_has_beside_each_other() -> None:
    bound = TokenBound([b"a", b"b", b"ab", b"ba"], unsure=b"", composes=False)
    assert bound.at_least(b"", ALL) == 0
    assert bound.at_least(b"abba", ALL) == 2
    assert bound.at_least(b"abbaa", ALL) == 3


def test_a_run_has_as_many_tokens_as_its_bytes_need() -> None:
    bound = TokenBound([b"aaaa", b"ac", b"ca", b"c"], unsure=b"", composes=False)
    assert bound.at_least(b"a" * 9, ALL) == 3
    assert (
        TokenBound([b"aab", b"abb", b"ba"], unsure=b"", composes=False).at_least(b"aabb" * 2, ALL)
        == 3
    )
    # one in two bytes of any piece
    assert bound.at_least(b"ac" * 5, ALL) == 5


def test_each_mark_is_a_token_and_a_border() -> None:
    bound = TokenBound([b"ab", b"a", b"b"], unsure=b"", composes=False)
    assert bound.at_least(b"a" + ONE_TOKEN * 2 + b"b", ALL) == 4


def test_what_is_unsure_counts_for_nothing_and_parts_nothing() -> None:
    bound = TokenBound([b"ab", b"a", b"b", b" "], unsure=b" ", composes=False)
    assert bound.at_least(b"   ", ALL) == 0
    assert bound.at_least(b"a  b", ALL) == 1
    assert bound.at_least(ONE_TOKEN + b" " + ONE_TOKEN, ALL) == 2


def test_what_the_next_character_may_change_is_unsure() -> None:
    bound = TokenBound([b"x", b"e", b"<", b"\xcc", b"\x81"], unsure=b"\xcc\x81", composes=True)
    assert bound.at_least(b"xe", ALL) == 2
    assert bound.at_least("xe\u0301".encode(), ALL) == 1
    assert bound.at_least(ONE_TOKEN + "e\u0301".encode() + ONE_TOKEN, ALL) == 2
    # also where another part begins between them
    text = "x" * 65_535 + "e\u0301"
    assert bound.at_least(text.encode(), ALL) == 65_534


def test_a_long_text_is_looked_at_until_enough_is_found() -> None:
    bound = TokenBound([b"a", b"aaa"], unsure=b"", composes=False)
    text = b"a" * 300_000
    # a token may lie on the border of two parts
    assert 99_990 < bound.at_least(text, ALL) <= 100_000
    assert 10 <= bound.at_least(text, 10) < 40_000


def test_a_pre_tokenizer_that_loses_text_has_no_bound() -> None:
    for lost in ("Removed", "Isolated"):
        backend = Backend.from_str(byte_level_backend().to_str())
        split = pre_tokenizers.Split(Regex("x"), lost.lower())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        bound = bound_of(backend, Tokenizer(backend, {}, None).vocabulary)
        assert (bound is None) == (lost == "Removed")


def test_white_space_that_a_token_swallows_does_not_count() -> None:
    backend = backend_of(byte_level_backend(), rstrip=True)
    tokenizer = Tokenizer(backend, {}, None)
    text = "<s>" + " \t" * 50
    assert len(tokenizer.encode(text)) == 1
    assert tokenizer.at_least(text, ALL) <= 1


def test_characters_without_bytes_have_no_bound() -> None:
    assert Tokenizer(lossy_backend("dropped"), {}, None).at_least("The fox " * 99, ALL) == 0
    lossy = Tokenizer(lossy_backend("bytes"), {}, None)
    assert lossy.at_least("\x04" * 99, ALL) == 0
    assert lossy.at_least("a" * 99, ALL) > 9
