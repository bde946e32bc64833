"""Tools that a request offers, and how they may be chosen."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, Tag

from app.limits import MAX_TOOLS
from app.protocol.strict import JsonObject, Strict, either, fault

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
_CHOICE = 'it must be "none", "auto", "required" or {"type": "function", "function": {"name"}}'


class Function(Strict):
    """A function that the model may call; `parameters` are a JSON schema."""

    place: ClassVar[str] = "tools.function."

    name: ToolName
    description: str | None = None
    parameters: JsonObject = Field(default={"type": "object", "properties": {}})
    strict: bool = False


class Tool(Strict):
    """A tool of the one kind that there is."""

    place: ClassVar[str] = "tools."

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return what a chat template sees."""
        shown = self.function.model_dump(exclude={"strict"}, exclude_none=True)
        return {"type": "function", "function": shown}


def _distinct(tools: list[Tool]) -> list[Tool]:
    seen = set[str]()
    for index, tool in enumerate(tools):
        if tool.function.name in seen:
            raise fault("", f"the name of item {index} is there twice")
        seen.add(tool.function.name)
    return tools


Tools = Annotated[
    list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), AfterValidator(_distinct)
]


class FunctionName(Strict):
    """Names a function."""

    place: ClassVar[str] = "tool_choice.function."

    name: ToolName


class NamedTool(Strict):
    """The one tool to be called."""

    place: ClassVar[str] = "tool_choice."

    type: Literal["function"]
    function: FunctionName


def _kind_of_choice(choice: Any) -> str | None:
    return "<word>" if isinstance(choice, str) else "<named>" if isinstance(choice, dict) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedTool, Tag("<named>")],
    either(_kind_of_choice, _CHOICE),
]


class ToolFields(Strict):
    """The fields of a chat that say what may be called."""

    tools: Tools = Field([])
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
