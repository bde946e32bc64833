"""Log-probabilities in the shapes of the API."""

import math

from app.protocol.logprobs import LogprobWriter
from app.text.choice_text import TokenLogprob
from tests.app.text.tokenizers import spelled_vocabulary

WORDS = spelled_vocabulary("one", " two", b"\xe2\x82", "1e")
ENTRY = TokenLogprob(token=1, text=" t", offset=3, logprob=-0.5, top=((0, -0.25), (1, -0.5)))
FIRST = TokenLogprob(token=0, text="one", offset=0, logprob=None, top=())


def writer(*, as_ids: bool = False) -> LogprobWriter:
    return LogprobWriter(WORDS, as_ids=as_ids)


def test_completions_have_four_lists_of_equal_length() -> None:
    assert writer().completion([FIRST, ENTRY]) == {
        "tokens": ["one", " t"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {" two": -0.5, "one": -0.25}],
        "text_offset": [0, 3],
    }


def test_the_sampled_token_comes_first() -> None:
    [top] = writer().completion([ENTRY])["top_logprobs"]
    assert list(top) == [" two", "one"]


def test_chats_have_one_object_a_token_with_its_bytes() -> None:
    [shown] = writer().chat([FIRST, ENTRY])["content"]
    assert shown == {
        "token": " two",
        "logprob": -0.5,
        "bytes": list(b" two"),
        "top_logprobs": [
            {"token": "one", "logprob": -0.25, "bytes": list(b"one")},
            {"token": " two", "logprob": -0.5, "bytes": list(b" two")},
        ],
    }


def test_prompts_have_one_object_a_token_by_ids_with_ranks() -> None:
    first, second = writer().prompt([FIRST, ENTRY])
    assert first is None
    assert second == {
        "1": {"logprob": -0.5, "rank": 2, "decoded_token": " two"},
        "0": {"logprob": -0.25, "rank": 1, "decoded_token": "one"},
    }


def test_the_rank_of_a_token_that_is_no_alternative_is_not_known() -> None:
    entry = TokenLogprob(token=3, text="", offset=0, logprob=-9.0, top=((0, -0.25),))
    [shown] = writer().prompt([entry])
    assert shown is not None
    assert [value["rank"] for value in shown.values()] == [None, 1]


def test_part_of_a_character_is_shown_as_bytes() -> None:
    entry = TokenLogprob(token=2, text="", offset=0, logprob=-1.0, top=())
    [shown] = writer().chat([entry])["content"]
    assert (shown["token"], shown["bytes"]) == ("bytes:\\xe2\\x82", [0xE2, 0x82])


def test_tokens_can_be_written_as_ids() -> None:
    shown = writer(as_ids=True).completion([ENTRY])
    assert shown["tokens"] == ["token_id:1"]
    assert list(shown["top_logprobs"][0]) == ["token_id:1", "token_id:0"]
    assert writer(as_ids=True).chat([ENTRY])["content"][0]["token"] == "token_id:1"


def test_json_has_no_infinity() -> None:
    for logprob in (-math.inf, math.nan, -1e9):
        entry = TokenLogprob(token=0, text="one", offset=0, logprob=logprob, top=((1, -math.inf),))
        shown = writer().completion([entry])
        assert shown["token_logprobs"] == [-9999.0]
        assert shown["top_logprobs"] == [{"one": -9999.0, " two": -9999.0}]
