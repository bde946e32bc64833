"""Where traces go, and which ones are made."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingOptions:
    """See the options of `tracing`.

    Attributes:
        model_name: in the spans' names.
        headers: (name, value) pairs that the collector gets.
    """

    model_name: str
    endpoint: str
    protocol: Literal["http/protobuf", "file"]
    ratio: float
    max_traces_per_s: float
    headers: tuple[tuple[str, str], ...] = ()


def check_exporter() -> None:
    """Return if what sends traces is installed.

    Raises:
        ConfigError: with what installs it.
    """
    name = "opentelemetry.exporter.otlp.proto.http"
    try:
        found = find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(
            "tracing.endpoint needs OpenTelemetry's exporter: pip install 'pagoda[otlp]'"
        )
