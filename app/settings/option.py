"""Declares the options of the application, so that each has one default, one range and one text."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, Strict

from engine.config import (
    Device,
    EngineConfig,
    ResumeConfig,
    SchedulerConfig,
    bounds_of,
    doc_of,
)

# of groups of options
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())
PathOption = Annotated[Path, Strict(False)]
# fields of the engine's configuration by name
ENGINE_FIELDS = {each.name: each for each in (*fields(EngineConfig), *fields(SchedulerConfig))}
# and those of what an ingress does about engines that it loses
RESUME_FIELDS = {each.name: each for each in fields(ResumeConfig)}


def option(doc: str, *, shown: str | None = None, **settings: Any) -> Any:
    """Declare an option of the application.

    Args:
        doc: the meaning in Markdown; the only text about the option, without its default.
        shown: what the reference shows as its default, where the value does not say it.
        settings: of `pydantic.Field`: default and range.
    """
    if shown is not None:
        settings["json_schema_extra"] = {"shown": shown}
    return Field(description=doc, **settings)


def engine_option(name: str, *, also: str = "", **settings: Any) -> Any:
    """Declare an option that is a field of the engine's configuration, where all about it stands.

    Args:
        name: of the field of `EngineConfig`, `SchedulerConfig` or `ResumeConfig`.
        also: continues the text, with what only the application does.
        settings: see `option`; they replace those of the field where the application has another
            unit or fills in the default.
    """
    field = (ENGINE_FIELDS | RESUME_FIELDS)[name]
    inherited: dict[str, Any] = {"default": field.default} | bounds_of(field)
    if field.type is float:
        inherited["allow_inf_nan"] = False
    return option(doc_of(field) + also, **(inherited | settings))


def by_device(defaults: Mapping[Device, float]) -> str:
    """What a reference shows as a default that depends on the device."""
    return f"{defaults['cpu']:g} on a CPU, {defaults['cuda']:g} on a GPU"
