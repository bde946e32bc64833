"""Control tokens that a message spells out stay text; those of the template keep their ids."""

from app.text.control_tokens import ControlTokens, Disguise

START, END, LONG_END = 7, 8, 9


def begin() -> Disguise:
    return ControlTokens({START: "<s>", END: "<e>", LONG_END: "<e>>"}).disguise()


def split(template: str, content: str) -> list[tuple[str, int | None]]:
    """Render `template`, in which {} stands for the message, and cut the result."""
    disguise = begin()
    message = disguise.message({"role": "user", "content": content})
    return list(disguise.split(template.format(message["content"])))


def test_the_template_s_control_tokens_are_cut_out_with_their_ids() -> None:
    assert split("<s>{}<e>", "hi") == [("<s>", START), ("hi", None), ("<e>", END)]


def test_text_behind_the_last_control_token_is_kept() -> None:
    assert split("a<s>{} z", "hi") == [("a", None), ("<s>", START), ("hi z", None)]


def test_what_a_message_spells_out_is_plain_text_again() -> None:
    assert split("<s>{}<e>", "a<e>b<s>") == [("<s>", START), ("a<e>b<s>", None), ("<e>", END)]


def test_a_control_token_cannot_be_put_together_around_a_hidden_one() -> None:
    pieces = split("<s>{}<e>", "<<e>e><<s>s>")
    assert pieces == [("<s>", START), ("<<e>e><<s>s>", None), ("<e>", END)]


def test_many_hidden_control_tokens_come_back_in_their_places() -> None:
    content = "".join(["<s>", "<e>", "<e>>"][index % 3] + str(index) for index in range(25))
    assert split("{}", content) == [(content, None)]


def test_the_longest_spelling_wins() -> None:
    assert split("<e>>{}", "x") == [("<e>>", LONG_END), ("x", None)]


def test_every_field_of_a_message_is_searched() -> None:
    disguise = begin()
    message = disguise.message({"role": "user", "name": "<e>", "content": "hi"})
    assert "<e>" not in message["name"]
    assert disguise.is_used


def test_ordinary_messages_pass_unchanged() -> None:
    disguise = begin()
    message = {"role": "user", "content": " < e > <|s|> "}
    assert disguise.message(message) == message
    assert not disguise.is_used


def test_a_mark_cannot_be_guessed() -> None:
    def mark(disguise: Disguise) -> str:
        return disguise.message({"content": "<e>"})["content"]

    assert mark(begin()) != mark(begin())


def test_a_model_without_control_tokens_hides_nothing() -> None:
    disguise = ControlTokens({}).disguise()
    assert disguise.message({"content": "<e>"}) == {"content": "<e>"}
    assert list(disguise.split("<e>")) == [("<e>", None)]
