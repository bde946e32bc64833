import io
import json

import pytest

from app.command.__main__ import main
from app.command.client.chat import Conversation
from app.command.client.generation import ShownAnswer, stats_line
from tests.app.command.client.fake_server import FakeServer


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO("from the pipe\n")
    monkeypatch.setattr("sys.stdin", stream)
    return stream


def test_a_text_and_what_is_piped_are_completed(
    server: FakeServer, piped: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", server.url, "--max-tokens", "3", "--body", "top_p=0.5", "--stats"]
    assert main(["complete", "given", *words]) == 0
    out, err = capsys.readouterr()
    assert out == "Hi 0\n"
    assert err.startswith("4 prompt tokens (0 cached), 2 tokens, first after ")
    [body] = server.bodies
    assert (body["prompt"], body["model"]) == ("given\nfrom the pipe\n", "m")
    assert (body["max_tokens"], body["top_p"], body["stream"]) == (3, 0.5, True)


def test_nothing_to_complete_is_a_mistake(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["complete", "--url", server.url]) == 1
    assert "there is no text" in capsys.readouterr().err


def test_several_answers_stand_below_each_other(
    server: FakeServer, piped: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "x", "--url", server.url, "--beams", "2", "--system", "s"]) == 0
    assert capsys.readouterr().out == "[1] Hi 0\n[2] Hi 1\n"
    [body] = server.bodies
    assert (body["n"], body["use_beam_search"]) == (2, True)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_json_is_the_answer_as_it_came(
    server: FakeServer, piped: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "x", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "x"}


def test_a_conversation_goes_on_and_is_forgotten() -> None:
    talk = Conversation(model="m")
    talk.command("/system Be short.")
    talk.note("a", "b")
    assert [message["content"] for message in talk.body("c")["messages"]] == [
        "Be short.",
        "a",
        "b",
        "c",
    ]
    talk.command("/new")
    assert [message["content"] for message in talk.messages] == ["Be short."]


def test_commands_change_how_answers_are_asked_for() -> None:
    talk = Conversation(model="m")
    talk.command("/beams 4")
    talk.command("/set temperature=0.5")
    assert talk.fields == {"n": 4, "use_beam_search": True, "temperature": 0.5}
    talk.command("/n 1")
    assert talk.fields == {"temperature": 0.5}
    talk.command("/stats")
    assert talk.has_stats
    assert "/beams N" in talk.command("/what")
    for line in ("/n x", "/beams 0", "/set y", "/set a=["):
        with pytest.raises(ValueError, match=r"wants|YAML"):
            talk.command(line)


def test_stats_count_tokens_behind_the_first() -> None:
    answer = ShownAnswer(
        usage={"prompt_tokens": 9, "completion_tokens": 5}, first_s=0.5, total_s=2.5
    )
    assert stats_line(answer).endswith("first after 500 ms, all after 2.50 s, 2.0 tokens/s")
