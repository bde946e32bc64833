"""The frame that both routes put around their choices."""

import json
from typing import Any

import pytest

from app.protocol.answer import AnswerContext, AnswerWriter, Usage
from app.protocol.api_settings import ApiSettings
from app.protocol.chat_answer import ChatAnswer
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_answer import CompletionAnswer
from app.protocol.completion_request import CompletionRequest
from app.protocol.logprobs import LogprobWriter
from app.text.beam_text import BeamProgress, BeamText
from app.text.choice_text import TextDelta, TokenLogprob
from engine.types import int32
from tests.app.api.server import MODEL, chat_body, completion_body
from tests.app.text.tokenizers import spelled_vocabulary

WORDS = spelled_vocabulary("one", " two")
SETTINGS = ApiSettings(
    model_id=MODEL, created_s=0, max_model_len=64, vocab_size=2, system_fingerprint="print"
)


def context(prompts: list[Any]) -> AnswerContext:
    return AnswerContext(
        prompts=prompts, vocabulary=WORDS, settings=SETTINGS, request_id="7", created_s=5
    )


USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1)
USAGE_JSON = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def completions(num_prompts: int = 1, **fields: Any) -> CompletionAnswer:
    prompts = [int32([number, 1]) for number in range(num_prompts)]
    request = CompletionRequest(**completion_body(**fields))
    return CompletionAnswer(request, context(prompts))


def chats(**fields: Any) -> ChatAnswer:
    request = ChatRequest(**chat_body(**fields))
    return ChatAnswer(request, context([int32([0, 1])]))


def streamed(**options: bool) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": True, **options}}


def chunks(writer: AnswerWriter, delta: TextDelta, index: int = 0) -> list[dict[str, Any]]:
    return [json.loads(chunk) for chunk in writer.update_chunks(index, delta, USAGE)]


def text(said: str, finish_reason: str | None = None) -> TextDelta:
    return TextDelta(text=said, token_ids=(1,), finish_reason=finish_reason)


def test_a_whole_answer_names_model_usage_and_build() -> None:
    answer = json.loads(completions().complete([text("a", "stop")], USAGE))
    assert (answer["id"], answer["object"]) == ("cmpl-7", "text_completion")
    assert (answer["created"], answer["model"]) == (5, MODEL)
    assert (answer["usage"], answer["system_fingerprint"]) == (USAGE_JSON, "print")
    answer = json.loads(chats().complete([text("a", "stop")], USAGE))
    assert (answer["id"], answer["object"]) == ("chatcmpl-7", "chat.completion")


def test_choices_of_a_whole_answer_are_numbered() -> None:
    answer = json.loads(completions(n=2).complete([text("a", "stop"), text("b", "length")], USAGE))
    found = [(c["index"], c["text"], c["finish_reason"]) for c in answer["choices"]]
    assert found == [(0, "a", "stop"), (1, "b", "length")]


def test_a_chat_begins_each_choice_with_a_role_and_once() -> None:
    writer = chats(n=2)
    first = chunks(writer, text("a"))
    assert [c["choices"][0]["index"] for c in first] == [0, 1, 0]
    assert [c["choices"][0]["delta"].get("role") for c in first] == ["assistant"] * 2 + [None]
    assert len(chunks(writer, text("b"), index=1)) == 1


def test_the_end_of_a_choice_is_a_chunk_without_text() -> None:
    last_text, end = chunks(completions(), text("a", "stop"))
    assert (last_text["choices"][0]["text"], last_text["choices"][0]["finish_reason"]) == (
        "a",
        None,
    )
    assert (end["choices"][0]["text"], end["choices"][0]["finish_reason"]) == ("", "stop")
    assert "system_fingerprint" not in last_text
    assert end["system_fingerprint"] == "print"


def test_nothing_is_sent_where_there_is_nothing_to_say() -> None:
    assert chunks(completions(), TextDelta(text="")) == []


@pytest.mark.parametrize(
    ("fields", "running", "closing"),
    [
        ({"stream": True}, False, []),
        (streamed(), None, [USAGE_JSON]),
        (streamed(continuous_usage_stats=True), USAGE_JSON, [USAGE_JSON]),
    ],
)
def test_usage_comes_as_it_was_asked_for(
    fields: dict[str, Any], running: Any, closing: list[Any]
) -> None:
    writer = completions(**fields)
    [chunk] = chunks(writer, text("a"))
    assert chunk.get("usage", False) == running
    assert [json.loads(last)["usage"] for last in writer.closing_chunks(USAGE)] == closing


def test_the_ids_of_a_prompt_come_once_with_each_of_its_choices() -> None:
    writer = completions(num_prompts=2, n=2, return_token_ids=True)
    for index, prompt in ((0, [0, 1]), (1, [0, 1]), (2, [1, 1]), (3, [1, 1])):
        [first], [second] = (chunks(writer, text("a"), index) for _ in range(2))
        assert first["choices"][0]["prompt_token_ids"] == prompt
        assert "prompt_token_ids" not in second["choices"][0]
        assert second["choices"][0]["token_ids"] == [1]


def test_log_probabilities_have_the_shape_of_their_route() -> None:
    entry = TokenLogprob(token=0, text="one", offset=0, logprob=-0.5, top=())
    delta = TextDelta(text="one", token_ids=(0,), logprobs=(entry,))
    [chunk] = chunks(completions(logprobs=0), delta)
    assert chunk["choices"][0]["logprobs"]["tokens"] == ["one"]
    [chunk] = chunks(completions(), delta)
    assert chunk["choices"][0]["logprobs"] is None
    *_, chunk = chunks(chats(logprobs=True), delta)
    assert [e["token"] for e in chunk["choices"][0]["logprobs"]["content"]] == ["one"]


PROMPT = (
    TokenLogprob(token=0, text="one", offset=0, logprob=None, top=()),
    TokenLogprob(token=1, text=" two", offset=3, logprob=-0.5, top=((1, -0.5), (0, -1.0))),
)
SAID = TokenLogprob(token=0, text="one", offset=7, logprob=-0.25, top=((0, -0.25),))


def test_what_choices_share_is_written_once_and_stands_in_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[tuple[TokenLogprob, ...]] = []
    shapes = {name: getattr(LogprobWriter, name) for name in ("completion", "prompt")}

    def noted(name: str) -> Any:
        def write(self: LogprobWriter, tokens: tuple[TokenLogprob, ...]) -> Any:
            written.append(tokens)
            return shapes[name](self, tokens)

        return write

    for name in shapes:
        monkeypatch.setattr(LogprobWriter, name, noted(name))
    fields: dict[str, Any] = {"n": 3, "echo": True, "logprobs": 1, "prompt_logprobs": 1}
    choices = [
        TextDelta(
            text="one twoone",
            token_ids=(0,),
            logprobs=(*PROMPT, SAID),
            num_echoed=2,
            prompt=PROMPT,
            finish_reason="length",
        )
        for _ in range(6)
    ]
    whole = completions(num_prompts=2, return_token_ids=True, **fields)
    answer = json.loads(whole.complete(choices, USAGE))
    # for each of two prompts both lists, and for each choice what it said
    assert (written.count(PROMPT), written.count((SAID,)), len(written)) == (4, 6, 10)
    plain = LogprobWriter(WORDS, as_ids=False)
    for index, choice in enumerate(answer["choices"]):
        assert choice["logprobs"] == shapes["completion"](plain, (*PROMPT, SAID))
        assert choice["prompt_logprobs"] == shapes["prompt"](plain, PROMPT)
        assert choice["prompt_token_ids"] == [index // 3, 1]


def test_a_choice_may_say_nothing_behind_its_prompt() -> None:
    delta = TextDelta(text="one two", logprobs=PROMPT, num_echoed=2, finish_reason="length")
    answer = json.loads(completions(echo=True, logprobs=1).complete([delta], USAGE))
    assert answer["choices"][0]["logprobs"]["tokens"] == ["one", " two"]


def test_the_progress_of_a_search_has_no_choices() -> None:
    beams = (
        BeamText(text="a", cumulative_logprob=-1.0, is_finished=True),
        BeamText(text="b", cumulative_logprob=-2.0, is_finished=False),
    )
    chunk = json.loads(completions(**streamed()).progress_chunk(4, BeamProgress(beams=beams)))
    assert (chunk["choices"], chunk["usage"]) == ([], None)
    assert [(b["index"], b["text"], b["finish_reason"]) for b in chunk["beams"]] == [
        (4, "a", "stop"),
        (5, "b", None),
    ]
