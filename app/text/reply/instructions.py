"""Describes tools to a model whose chat template takes none, in a system message.

The words are those that SmolLM2 was trained on:
https://huggingface.co/HuggingFaceTB/SmolLM2-1.7B-Instruct
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = """\
You are an expert in composing functions. You are given a question and a set of possible functions.
Based on the question, you will need to make one or more function/tool calls to achieve the purpose.
If none of the functions can be used, point it out and refuse to answer.
If the given question lacks the parameters required by the function, also point it out.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
The example format is as follows. Please make sure the parameter type is correct. If no function \
call is needed, please make the tool calls an empty list '[]'.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more tool calls as required)
]</tool_call>"""


def with_instructions(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Write tools, calls and their results as plain messages.

    Args:
        messages: as a chat template takes them.
        tools: as a chat template takes them; may be empty.
    """
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    functions = [tool["function"] for tool in tools]
    words = _WORDS.format(tools=json.dumps(functions, ensure_ascii=False))
    if plain and plain[0]["role"] in ("system", "developer"):
        first = plain.pop(0)
        words = f"{first['content']}\n\n{words}"
    return [{"role": "system", "content": words}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if not calls:
        return dict(message)
    written = json.dumps([call["function"] for call in calls], ensure_ascii=False)
    text = f"<tool_call>{written}</tool_call>"
    return {"role": message["role"], "content": f"{content}\n{text}" if content else text}
