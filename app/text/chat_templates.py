"""The chat templates of a model folder, of which each request takes one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.text.chat_template import ChatTemplate
from engine.errors import ConfigError

DEFAULT, WITH_TOOLS, WITH_DOCUMENTS = "default", "tool_use", "rag"


class ChatTemplates:
    """Named templates, compiled.

    Attributes:
        default: of ordinary conversations; None for a model without any.

    Raises:
        ConfigError: if one is not valid Jinja.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Args: sources: templates by name."""
        self._named = {name: ChatTemplate(text, special_tokens) for name, text in sources.items()}
        self.default = self._named.get(DEFAULT)

    def choose(self, *, has_tools: bool, has_documents: bool) -> ChatTemplate | None:
        """Return the template of a request, as transformers choose it.

        Templates that are made for tools or for documents come first; most models have one for all.
        """
        wanted = ((WITH_TOOLS, has_tools), (WITH_DOCUMENTS, has_documents))
        special = (
            self._named[name] for name, is_wanted in wanted if is_wanted and name in self._named
        )
        return next(special, self.default)


def read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Find the templates of a model folder: name -> source.

    Files come before tokenizer_config.json, as in transformers.

    Args:
        config: content of tokenizer_config.json.

    Raises:
        ConfigError: if what should be templates is something else.
    """
    found = _named(folder / "tokenizer_config.json", config.get("chat_template"))
    older = folder / "chat_template.json"
    if older.is_file():
        found |= _named(older, _read_older(older))
    files = [
        folder / "chat_template.jinja",
        *sorted(folder.glob("additional_chat_templates/*.jinja")),
    ]
    for path in files:
        if path.is_file():
            name = DEFAULT if path.parent == folder else path.stem
            found[name] = _read(path)
    return found


def _named(path: Path, value: Any) -> dict[str, str]:
    """One template, or a list of named ones."""
    try:
        if isinstance(value, list):
            found = {option["name"]: option["template"] for option in value}
        else:
            found = {} if value is None else {DEFAULT: value}
    except (KeyError, TypeError):
        found = {DEFAULT: None}
    if not all(isinstance(text, str) for item in found.items() for text in item):
        raise ConfigError(f"{path}: chat_template is neither a text nor a list of named texts")
    return found


def _read_older(path: Path) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return content.get("chat_template") if isinstance(content, dict) else content


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error})") from error
