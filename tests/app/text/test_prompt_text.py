from app.text.prompt_text import PromptText
from app.text.text_options import TextOptions
from engine.runtime.protocol import Delta
from engine.types import PROMPT_CHOICE, float32, int32
from tests.app.text.tokenizers import spelled_vocabulary

WORDS = spelled_vocabulary("one", " twenty", " three", b"\xe2\x82", b"\xac", special=("<|end|>",))
END = 5


def scores(*tokens: int) -> Delta:
    return Delta(
        choice=PROMPT_CHOICE,
        tokens=int32(list(tokens)),
        logprobs=float32([-float(token) for token in tokens]),
        top_tokens=tuple(int32([0, 1]) for _ in tokens),
        top_logprobs=tuple(float32([-0.5, -1.5]) for _ in tokens),
    )


def prompt(ids: list[int], text: str | None = None, **options: int | bool | None) -> PromptText:
    return PromptText(WORDS, TextOptions(**options), ids, text)  # type: ignore[arg-type]


def test_scores_belong_to_the_tokens_from_the_second_on() -> None:
    text = prompt([0, 1, 2], echo=True, num_logprobs=1)
    assert text.num_missing == 2
    text.push(scores(1))
    text.push(scores(2))
    assert text.num_missing == 0
    opening = text.opening()
    assert opening.text == "one twenty three"
    assert [(e.text, e.offset, e.logprob) for e in opening.logprobs] == [
        ("one", 0, None),
        (" twenty", 3, -1.0),
        (" three", 10, -2.0),
    ]
    assert [e.top for e in opening.logprobs] == [(), ((0, -0.5),), ((0, -0.5),)]


def test_scores_that_are_told_again_are_ignored() -> None:
    """A preempted prompt may be computed twice."""
    text = prompt([0, 1, 2], num_prompt_logprobs=0)
    for delta in (scores(1), scores(2), scores(1, 2), scores(2)):
        text.push(delta)
    assert [entry.logprob for entry in text.opening().prompt] == [None, -1.0, -2.0]


def test_nothing_is_missing_where_nothing_is_wanted() -> None:
    for options in ({}, {"echo": True}, {"num_logprobs": 3}):
        text = prompt([0, 1], **options)
        assert text.num_missing == 0
        assert (text.opening().logprobs, text.opening().prompt) == ((), ())
    assert prompt([0, 1]).opening().text == ""


def test_a_character_of_several_tokens_is_the_last_one_s() -> None:
    text = prompt([0, 3, 4, 3], echo=True, num_logprobs=0)
    text.push(scores(3, 4, 3))
    assert [entry.text for entry in text.opening().logprobs] == ["one", "", "€", "\ufffd"]


def test_control_tokens_of_a_text_are_shown_where_it_spells_them() -> None:
    assert prompt([END, 0], "one", echo=True).text == "one"
    assert prompt([END, 0], "<|end|>one", echo=True).text == "<|end|>one"
    assert prompt([END, 0, END], "one<|end|>", echo=True).text == "one<|end|>"
    assert prompt([END, 0], None, echo=True).text == "<|end|>one"


def test_each_list_has_as_many_alternatives_as_were_asked_for() -> None:
    text = prompt([0, 1], echo=True, num_logprobs=1, num_prompt_logprobs=2)
    text.push(scores(1))
    opening = text.opening()
    assert [len(entry.top) for entry in opening.logprobs] == [0, 1]
    assert [len(entry.top) for entry in opening.prompt] == [0, 2]


def test_a_list_beside_the_text_does_not_echo_the_prompt() -> None:
    text = prompt([0, 1], num_prompt_logprobs=0)
    text.push(scores(1))
    assert (text.opening().text, text.opening().logprobs) == ("", ())
    assert [entry.token for entry in text.opening().prompt] == [0, 1]
