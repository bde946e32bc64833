"""Options of what the server tells its operators."""

from typing import Literal

from pydantic import BaseModel

from app.settings.option import STRICT, PathOption, option


class MetricsOption(BaseModel):
    """The metrics at `/metrics`, beside which there may be copies."""

    model_config = STRICT

    aliases: tuple[Literal["vllm"], ...] = option(
        "further names of the metrics: `vllm` adds those that vLLM has, for its boards and routers",
        default=(),
        strict=False,
        shown="none",
    )
    ray: bool = option(
        "copy counters and gauges to Ray's exporter on each node, with `ray_` before their names",
        default=False,
    )


class TracingOption(BaseModel):
    """A trace of each request: which part of it took how long."""

    model_config = STRICT

    endpoint: str | None = option(
        "where spans go: the URL of an OpenTelemetry collector, such as "
        "`http://collector:4318/v1/traces`, or with `protocol: file` a folder on each ingress node",
        default=None,
        shown="none: there are no traces",
        min_length=1,
    )
    protocol: Literal["http/protobuf", "file"] = option(
        "OTLP over HTTP, which needs `pip install 'pagoda[otlp]'`, or files of OTLP as JSON lines",
        default="http/protobuf",
    )
    ratio: float = option(
        "share of the requests that are traced; one that fails or takes ten times the median "
        "always is, and one whose client asks for it by `traceparent`, if they are not too many",
        default=0.01,
        ge=0,
        le=1,
        allow_inf_nan=False,
    )
    max_traces_per_s: float = option(
        "most traces in a second of one ingress replica", default=50.0, gt=0, le=10_000,
        allow_inf_nan=False,
    )  # fmt: skip
    headers_file: PathOption | None = option(
        "file with a `name: value` per line, sent to the collector, such as its key",
        default=None,
        shown="none",
    )


class PageOption(BaseModel):
    """The page `/ui`, which shows people what the server does."""

    model_config = STRICT

    enabled: bool = option(
        "serve the page; its numbers cost nothing while nobody looks", default=True
    )
    max_viewers: int = option(
        "pages that may look at once, in each ingress replica", default=8, ge=1, le=64
    )
    max_hz: float = option(
        "most times in a second that what they show is asked for", default=5.0, gt=0, le=5,
        allow_inf_nan=False,
    )  # fmt: skip


class FlightRecorderOption(BaseModel):
    """Traces of what was asked and what became of it, without texts and tokens."""

    model_config = STRICT

    folder: PathOption | None = option(
        "folder on each ingress node in which its replicas write a line about every request, "
        "without texts and tokens",
        default=None,
        shown="none: nothing is recorded",
    )
    max_mib: float = option(
        "size of the files that one replica keeps; the oldest are deleted first",
        default=256.0,
        ge=1,
        le=1 << 20,
        allow_inf_nan=False,
    )
