"""What all clients ask for."""

from typing import Any, Literal

from pydantic import BaseModel

from tests.deployed.serve_run import MODEL

__all__ = ["HI", "MODEL", "SCHEMA", "TOOL", "Weather", "assert_is_weather"]

HI: Any = [{"role": "user", "content": "What will the weather be in Paris?"}]


class Weather(BaseModel):
    """A forecast for a city."""

    city: Literal["Paris", "Oslo"]
    days: Literal[1, 2]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Forecasts.", "parameters": SCHEMA},
}


def assert_is_weather(arguments: Any) -> None:
    Weather.model_validate(arguments)
    assert set(arguments) == {"city", "days"}
