"""Control tokens that a message spells out stay text; those of the template get marks."""

from app.text.control_tokens import ControlTokens

CONTROL = ControlTokens(["<s>", "<e>", "<e>>"])
START, END = CONTROL.marks["<s>"], CONTROL.marks["<e>"]


def marked(template: str, content: str) -> str:
    """Render `template`, in which {} stands for the message, and mark the result."""
    disguise = CONTROL.disguise()
    message = disguise.hide({"role": "user", "content": content})
    return disguise.mark(template.format(message["content"]))


def test_the_template_s_control_tokens_get_marks() -> None:
    assert marked("<s>{}<e>", "hi") == f"{START}hi{END}"
    assert marked("a<s>{} z", "hi") == f"a{START}hi z"


def test_what_a_message_spells_out_is_plain_text_again() -> None:
    assert marked("<s>{}<e>", "a<e>b<s>") == f"{START}a<e>b<s>{END}"


def test_a_control_token_cannot_be_put_together_around_a_hidden_one() -> None:
    assert marked("<s>{}<e>", "<<e>e><<s>s>") == f"{START}<<e>e><<s>s>{END}"


def test_many_hidden_control_tokens_come_back_in_their_places() -> None:
    content = "".join(["<s>", "<e>", "<e>>"][index % 3] + str(index) for index in range(25))
    assert marked("{}", content) == content


def test_the_longest_spelling_wins() -> None:
    control = ControlTokens(["<s>", "<e>", "<e>>"])
    assert control.disguise().mark("<e>>x") == f"{control.marks['<e>>']}x"


def test_every_field_of_a_message_is_searched() -> None:
    message = CONTROL.disguise().hide({"role": "user", "name": "<e>", "content": "hi"})
    assert "<e>" not in message["name"]


def test_values_inside_a_message_are_searched_too() -> None:
    calls = [{"function": {"arguments": {"<e>": ["<s>", 1, None]}}}]
    disguise = CONTROL.disguise()
    hidden = str(disguise.hide({"tool_calls": calls}))
    assert "<" not in hidden
    assert disguise.mark(hidden) == str({"tool_calls": calls})


def test_ordinary_messages_pass_unchanged() -> None:
    message = {"role": "user", "content": " < e > <|s|> "}
    assert CONTROL.disguise().hide(message) == message


def test_a_mark_cannot_be_guessed() -> None:
    def hidden() -> str:
        return str(CONTROL.disguise().hide("<e>"))

    assert hidden() != hidden()
    assert ControlTokens(["<e>"]).marks != ControlTokens(["<e>"]).marks


def test_no_mark_begins_another() -> None:
    marks = ControlTokens(map(str, range(30))).marks.values()
    assert not any(a != b and b.startswith(a) for a in marks for b in marks)


def test_a_model_without_control_tokens_hides_nothing() -> None:
    disguise = ControlTokens([]).disguise()
    assert disguise.hide({"content": "<e>"}) == {"content": "<e>"}
    assert disguise.mark("<e>") == "<e>"


def test_a_control_token_that_json_spells_otherwise_is_hidden_too() -> None:
    control = ControlTokens(['<"s">', "<\n>"])
    for text in control.marks:
        disguise = control.disguise()
        hidden = disguise.hide([{"content": f"a{text}b"}])
        assert text not in hidden[0]["content"]
        assert disguise.mark(hidden[0]["content"]) == f"a{text}b"


def test_what_is_no_json_is_searched_text_by_text() -> None:
    hidden = CONTROL.disguise().hide({"content": "\ud800<s>"})
    assert "<s>" not in hidden["content"]


def test_what_spells_no_control_token_stays_itself() -> None:
    message = {"role": "user", "content": "<s <e"}
    assert CONTROL.disguise().hide(message) is message


def test_marks_are_found_in_bytes() -> None:
    data = f"a{START}{END}<s>".encode()
    assert CONTROL.pattern_of_marks.sub(b"!", data) == b"a!!<s>"
