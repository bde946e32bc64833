import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from app.text.chat_templates import ChatTemplates, read_chat_templates
from engine.errors import ConfigError
from tests.app.text.tokenizers import byte_level_backend

NAMED = {"default": "d", "tool_use": "t", "rag": "r"}
USER = [{"role": "user", "content": "hi"}]


def chosen(sources: dict[str, str], **has: bool) -> str | None:
    template = ChatTemplates(sources, {}).choose(
        has_tools=has.get("tools", False), has_documents=has.get("documents", False)
    )
    return None if template is None else template.render(USER)


def test_each_request_gets_the_template_that_is_made_for_it() -> None:
    assert chosen(NAMED) == "d"
    assert chosen(NAMED, tools=True) == "t"
    assert chosen(NAMED, documents=True) == "r"
    assert chosen(NAMED, tools=True, documents=True) == "t"


def test_one_template_is_for_all() -> None:
    assert chosen({"default": "d"}, tools=True, documents=True) == "d"
    assert chosen({"rag": "r"}) is None
    assert chosen({}) is None


def test_a_template_that_is_never_used_must_be_valid_too() -> None:
    with pytest.raises(ConfigError, match="not valid"):
        ChatTemplates({"default": "d", "rag": "{% for %}"}, {})


def test_files_come_before_the_configuration_as_in_transformers(tmp_path: Path) -> None:
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=byte_level_backend())  # type: ignore[no-untyped-call]
    tokenizer.chat_template = NAMED
    tokenizer.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.jinja")) == [
        "chat_template.jinja", "rag.jinja", "tool_use.jinja",
    ]  # fmt: skip
    config = {"chat_template": [{"name": "default", "template": "old"}]}
    assert read_chat_templates(tmp_path, config) == NAMED
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path).chat_template == NAMED


def test_the_file_of_older_processors_is_read(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert read_chat_templates(tmp_path, {}) == {"default": "older"}


@pytest.mark.parametrize("value", [3, [3], [{"name": "default"}], [{"name": 1, "template": "x"}]])
def test_what_is_no_template_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a text nor a list of named texts"):
        read_chat_templates(tmp_path, {"chat_template": value})


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text("{")
    with pytest.raises(ConfigError, match=r"chat_template\.json is not valid JSON"):
        read_chat_templates(tmp_path, {})
    (tmp_path / "chat_template.json").unlink()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja is not UTF-8"):
        read_chat_templates(tmp_path, {})
