"""The application's options are the engine's fields: one default, one range, one text."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from app.settings.config import AppConfig, parse_config
from app.settings.engine_settings import to_engine_config
from app.settings.option import ENGINE_FIELDS, RESUME_FIELDS, engine_option
from engine.config import EngineConfig, SchedulerConfig, bounds_of, doc_of
from engine.errors import ConfigError
from tests import ROOT
from tests.app.settings.test_engine_settings import MODEL
from tests.test_architecture import sources

# option -> the engine's field in another unit
CONVERTED = {
    "kv_cache_gib": "kv_cache_bytes",
    "swap_gib": "swap_bytes",
    "inter_token_latency_ms": "inter_token_latency_s",
}
# options whose default is computed or that have the value `auto`
FILLED_IN = {
    "device", "dtype", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
    "max_waiting_tokens", "fills_steps",
}  # fmt: skip
# same name, but the option names a model or holds texts
OTHER_KIND = {"model", "pinned_prefixes"}
ONLY_APPLICATION = {
    "revision", "served_model_name", "stream_interval_ms", "cache_folder", "unknown_parameters",
    "api_keys_file", "cors_origins", "flight_recorder", "limits", "deadlines",
    "drain_s", "start_wait_s", "generation_config",
    "tool_call_format", "reasoning_format",
    "operator_keys_file", "access_log", "metrics", "tracing", "ui",
}  # fmt: skip
# what a user cannot set
ONLY_ENGINE = {"model_path", "scheduler", "eos_token_ids", "clips_context", "run_ahead", "graphs"}

FIELDS = ENGINE_FIELDS | RESUME_FIELDS
SHARED = sorted(FIELDS.keys() & AppConfig.model_fields.keys() - OTHER_KIND)


def without_none(annotation: Any) -> Any:
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(annotation) else annotation


def test_each_name_is_on_both_sides_or_in_a_list() -> None:
    options, engine = set(AppConfig.model_fields), set(FIELDS)
    assert options - engine == CONVERTED.keys() | ONLY_APPLICATION
    assert engine - options == set(CONVERTED.values()) | ONLY_ENGINE


def test_errors_speak_of_options_that_a_user_can_set() -> None:
    # `scheduler` is a plain word too
    inner = (
        {*CONVERTED.values(), *ONLY_ENGINE}
        - {"scheduler", "graphs"}
        - AppConfig.model_fields.keys()
    )
    spoken = {path: inner & set(words_of_errors(path)) for path in sources("app", "engine")}
    assert not {path: names for path, names in spoken.items() if names}


def words_of_errors(path: str) -> list[str]:
    """Words of the texts of every `ConfigError` of a module."""
    source = (ROOT / path).read_text(encoding="utf-8")
    if "ConfigError" not in source:
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    texts = [
        part.value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "ConfigError"
        for part in ast.walk(call)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return re.findall(r"\w+", " ".join(texts))


def test_no_name_is_in_both_dataclasses() -> None:
    outer = {each.name for each in dataclasses.fields(EngineConfig)}
    inner = {each.name for each in dataclasses.fields(SchedulerConfig)}
    assert not outer & inner


@pytest.mark.parametrize("name", SHARED)
def test_an_option_has_the_text_the_range_and_the_default_of_its_field(name: str) -> None:
    option, field = AppConfig.model_fields[name], FIELDS[name]
    assert option.description is not None
    assert option.description.startswith(doc_of(field))
    found = {
        bound: getattr(part, bound)
        for part in option.metadata
        for bound in ("ge", "gt", "le", "lt")
        if hasattr(part, bound)
    }
    assert found == bounds_of(field)
    if name not in FILLED_IN:
        assert option.default == field.default
    if name not in {"device", "dtype"}:
        assert without_none(option.annotation) == field.type


@pytest.mark.parametrize("name", sorted(CONVERTED))
def test_an_option_in_another_unit_has_the_text_of_its_field(name: str) -> None:
    option, field = AppConfig.model_fields[name], ENGINE_FIELDS[CONVERTED[name]]
    assert option.description == doc_of(field)
    assert (option.default or 0) == field.default


def test_every_field_of_the_engine_has_a_text() -> None:
    assert all(doc_of(field) for field in FIELDS.values())


def test_defaults_of_the_options_are_those_of_the_engine() -> None:
    config = parse_config({"device": "cpu", "dtype": "float32"})
    filled = to_engine_config(config, Path("/m"), MODEL)
    plain = EngineConfig.from_options(
        model=MODEL,
        **{name: filled.options()[name] for name in FILLED_IN | {"model_path", "kv_cache_bytes"}},
    )
    assert filled == plain
    assert None not in filled.options().values()


def test_a_number_that_is_none_is_refused_for_every_field_of_the_engine() -> None:
    names = [name for name in SHARED if FIELDS[name].type is float]
    assert names
    for name in names:
        with pytest.raises(ConfigError, match=f"{name} is nan"):
            parse_config({name: float("nan")})


def test_an_option_may_replace_what_it_has_from_the_engine() -> None:
    option = engine_option("max_num_seqs", also=", or more", default=None, le=5)
    assert option.default is None
    assert option.description == f"{doc_of(ENGINE_FIELDS['max_num_seqs'])}, or more"
    assert [part.le for part in option.metadata if hasattr(part, "le")] == [5]
