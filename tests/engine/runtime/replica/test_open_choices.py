from engine.runtime.replica.open_choices import OpenChoices
from engine.types import PROMPT_CHOICE


def test_a_request_ends_with_its_last_choice() -> None:
    choices = OpenChoices()
    choices.open(7, 2)
    choices.open(3, 1)
    assert list(choices) == [(3, 0), (7, 0), (7, 1)]
    assert not choices.close(7, 1)
    assert (len(choices), choices.num_choices) == (2, 2)
    assert choices.close(7, 0)
    assert choices.request_ids == [3]


def test_what_is_not_open_ends_nothing() -> None:
    choices = OpenChoices()
    choices.open(7, 2)
    assert not choices.close(7, 1)
    assert not choices.close(7, 1)
    assert not choices.close(7, PROMPT_CHOICE)
    assert not choices.close(8, 0)
    assert list(choices) == [(7, 0)]
    choices.clear()
    assert not choices
