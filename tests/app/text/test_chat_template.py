import pytest

from app.text import chat_template
from app.text.chat_template import ChatTemplate
from app.text.template_options import TemplateOptions
from engine.errors import ConfigError, InvalidRequest

USER = [{"role": "user", "content": "hi"}]


def test_special_tokens_and_helpers_are_there() -> None:
    source = "{{ bos_token }}{{ messages | tojson }}{{ strftime_now('%Y') | length }}{{ tools }}"
    rendered = ChatTemplate(source, {"bos_token": "<s>"}).render(USER)
    assert rendered == '<s>[{"role": "user", "content": "hi"}]4None'


def test_tojson_keeps_characters_as_they_are() -> None:
    messages = [{"role": "user", "content": "<ü>"}]
    assert ChatTemplate("{{ messages[0].content | tojson }}", {}).render(messages) == '"<ü>"'


def test_the_template_s_own_words_reach_the_client() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render(USER)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages.__class__.__mro__ }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_refuses_the_messages(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render(USER)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% for d in messages"
        " %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(70) }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * messages }}",
        "{{ 9 ** 999999999 }}",
    ],
    ids=range(5),
)
def test_a_template_without_an_end_refuses_the_messages(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "_MAX_RENDER_S", 0.05)
    with pytest.raises(InvalidRequest):
        ChatTemplate(source, {}).render(USER * 200)


def test_a_template_that_writes_too_much_refuses_the_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_template, "_MAX_CHARACTERS", 200)
    template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {})
    assert template.render(USER * 100) == "hi" * 100
    with pytest.raises(InvalidRequest):
        template.render(USER * 101)


def test_ordinary_computations_are_no_bombs() -> None:
    source = (
        "{{ '-' * 3 }}{{ 2 ** 10 }}{{ 6 * 7 }}{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}"
    )
    assert ChatTemplate(source, {}).render(USER) == "---102442<1>"


def test_templates_cannot_change_messages() -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate("{{ messages.append(1) }}", {}).render(USER)


def test_generation_blocks_and_loop_controls_are_understood() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% break %}{% endfor %}"
    )
    assert ChatTemplate(source, {}).render(USER * 2) == "hi"


def test_developer_is_system_for_a_template_that_does_not_know_it() -> None:
    message = [{"role": "developer", "content": "x"}]
    assert ChatTemplate("{{ messages[0].role }}", {}).render(message) == "system"
    known = "{% if messages[0].role == 'developer' %}known{% endif %}"
    assert ChatTemplate(known, {}).render(message) == "known"


def test_a_template_with_a_syntax_error_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="not valid"):
        ChatTemplate("{% for %}", {})


def test_the_beginning_of_an_answer_is_rendered_where_it_is_wanted() -> None:
    template = ChatTemplate("x{% if add_generation_prompt %}assistant{% endif %}", {})
    assert template.render(USER) == "xassistant"
    assert template.render(USER, TemplateOptions(add_generation_prompt=False)) == "x"


def test_line_breaks_behind_blocks_are_not_part_of_the_prompt() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}{% endif %}\n{% endfor %}"
    assert ChatTemplate(source, {}).render(USER * 2) == "hihi"


def test_tools_and_variables_reach_the_template() -> None:
    source = "{{ tools[0].function.name }} {{ mood }} {{ documents is none }}"
    options = TemplateOptions(tools=[{"function": {"name": "f"}}], variables={"mood": "good"})
    assert ChatTemplate(source, {}).render(USER, options) == "f good True"
    assert ChatTemplate("{{ tools is none }}", {}).render(USER) == "True"


def test_what_stands_behind_a_message_that_is_continued_is_cut_off() -> None:
    source = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"
    options = TemplateOptions(continues_last=True, add_generation_prompt=False)
    said = {"role": "assistant", "content": "The end "}
    assert ChatTemplate(source, {}).render([*USER, said], options) == "<hi><The end "


def test_a_message_that_is_not_shown_cannot_be_continued() -> None:
    options = TemplateOptions(continues_last=True)
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate("x", {}).render(USER, options)
    assert caught.value.param == "continue_final_message"
