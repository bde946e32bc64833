"""Published chat templates, rendered by the server and by transformers from the same conversations.

`python -m tests.app.models.published.templates REPOSITORY=FOLDER... > templates.json` reads all
files *.jinja of folders in which collections of them have been unpacked, and notes of each what is
equal, character for character, and what both refuse. The templates themselves are not copied here;
their digests say which they were.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from app.text.chat_template import ChatTemplate
from app.text.template_options import TemplateOptions
from engine.errors import InvalidRequest

Message = dict[str, Any]

_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "image_token": "<image>",
}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_height",
            "description": 'Height of a "pagoda" <in metres> & its year — 塔',
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "its name"},
                    "unit": {"type": "string", "enum": ["m", "ft"], "default": "m"},
                    "floors": {"type": ["array", "null"], "items": {"type": "integer"}},
                },
                "required": ["name"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "Time",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
_PLAIN_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_height",
            "description": "Height of a pagoda",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string", "description": "its name"}},
                "required": ["name"],
            },
        },
    }
]
_SYSTEM = {"role": "system", "content": "You are brief.\n"}
_ASKED = {"role": "user", "content": " How tall is <b>Hōryū-ji</b>? \n"}
_ANSWERED = {"role": "assistant", "content": "32 metres.\n\nIt's old."}
_THOUGHT = {
    "role": "assistant",
    "content": "32 metres.",
    "reasoning_content": "Five floors.\nSo 32.",
    "thinking": "Five floors.\nSo 32.",
}
_INLINE = {"role": "assistant", "content": "<think>\nFive floors.\n</think>\n\n32 metres."}
_AGAIN = {"role": "user", "content": "And its age?"}
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "find_height", "arguments": {"name": "Hōryū-ji", "floors": [1]}},
        }
    ],
}
_CALLED_WITH_TEXT = {**_CALLED, "content": "Let me look."}
_FOUND = {
    "role": "tool",
    "tool_call_id": "call00001",
    "name": "find_height",
    "content": '{"height": 32.45, "unit": "m"}',
}
_PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "How tall"}, {"type": "text", "text": "?"}],
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages with tools or without, and what else a request may say."""

    messages: list[Message]
    tools: Sequence[Message] = ()
    answers: bool = True
    variables: Mapping[str, Any] | None = None


CONVERSATIONS = {
    "one turn": Conversation([_ASKED]),
    "no answer begun": Conversation([_ASKED, _ANSWERED], answers=False),
    "system, turns": Conversation([_SYSTEM, _ASKED, _ANSWERED, _AGAIN]),
    "reasoning kept apart": Conversation([_ASKED, _THOUGHT, _AGAIN]),
    "reasoning at the end": Conversation([_ASKED, _THOUGHT], answers=False),
    "reasoning in the text": Conversation([_SYSTEM, _ASKED, _INLINE, _AGAIN]),
    "without thinking": Conversation([_ASKED], variables={"enable_thinking": False}),
    "thinking": Conversation([_ASKED], variables={"enable_thinking": True, "thinking": True}),
    "effort": Conversation([_SYSTEM, _ASKED], variables={"reasoning_effort": "high"}),
    "tools": Conversation([_ASKED], tools=_TOOLS),
    "system, tools": Conversation([_SYSTEM, _ASKED], tools=_TOOLS),
    "plain tools": Conversation([_ASKED], tools=_PLAIN_TOOLS),
    "call": Conversation([_ASKED, _CALLED, _FOUND], tools=_TOOLS),
    "call and text": Conversation([_SYSTEM, _ASKED, _CALLED_WITH_TEXT, _FOUND], tools=_TOOLS),
    "call, answer, turn": Conversation([_ASKED, _CALLED, _FOUND, _ANSWERED, _AGAIN], tools=_TOOLS),
    "two results": Conversation([_ASKED, _CALLED, _FOUND, _FOUND], tools=_TOOLS),
    "parts of text": Conversation([_PARTS]),
    "roles that do not alternate": Conversation([_ASKED, _AGAIN]),
    "answer first": Conversation([_ANSWERED, _ASKED]),
    "nothing but a system message": Conversation([_SYSTEM]),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Names of the conversations whose texts are equal, that both refuse, and of all others."""

    equal: list[str]
    refused: list[str]
    different: list[str]


def compare(source: str) -> Comparison:
    """Render all conversations twice.

    Raises:
        ConfigError: if the server does not take the template.
    """
    template = ChatTemplate(source, _TOKENS)
    found = Comparison([], [], [])
    for name, conversation in CONVERSATIONS.items():
        ours, theirs = _ours(template, conversation), _theirs(source, conversation)
        if ours != theirs:
            found.different.append(name)
        else:
            (found.refused if ours is None else found.equal).append(name)
    return found


def _ours(template: ChatTemplate, conversation: Conversation) -> str | None:
    options = TemplateOptions(
        add_generation_prompt=conversation.answers,
        tools=conversation.tools,
        variables=conversation.variables or {},
    )
    try:
        return template.render(conversation.messages, options)
    except InvalidRequest:
        return None


def _theirs(source: str, conversation: Conversation) -> str | None:
    render: Any = render_jinja_template
    try:
        texts, _ = render(
            conversations=[conversation.messages],
            tools=list(conversation.tools) or None,
            chat_template=source,
            add_generation_prompt=conversation.answers,
            **_TOKENS,
            **(conversation.variables or {}),
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError):
        return None
    return str(texts[0])


def main(folders: list[str]) -> int:
    """Write JSON: an entry for each text of a template; 1 if any differs."""
    noted: dict[str, dict[str, Any]] = {}
    for argument in folders:
        repository, _, folder = argument.partition("=")
        for path in sorted(Path(folder).rglob("*.jinja")):
            source = path.read_text(encoding="utf-8")
            found = compare(source)
            noted.setdefault(
                hashlib.sha256(source.encode()).hexdigest(),
                {
                    "name": path.stem,
                    "source": f"{repository}:{path.relative_to(folder)}",
                    "equal": len(found.equal),
                    "refused": len(found.refused),
                    "different": found.different,
                },
            )
    json.dump(noted, sys.stdout, indent=1)
    return int(any(entry["different"] for entry in noted.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
