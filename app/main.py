"""The application of serve_config.yaml: `import_path: app.main:build`."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from ray.serve import Application
from ray.serve._private.constants import RAY_SERVE_ENABLE_DIRECT_INGRESS
from starlette.types import ASGIApp

from app.generation.pinned_prefixes import encode_prefixes
from app.http.flow.direct_writer import DirectApp
from app.http.routes import build_app
from app.models.model_store import commit_of, resolve, verify
from app.preflight import check
from app.protocol.api_settings import ApiSettings, Deadlines
from app.recorder.flight_recorder import RecorderOptions
from app.serve.deployments import (
    EngineDeployment,
    IngressDeployment,
    draining,
    gang_options,
    resources,
)
from app.serve.startup import config_errors_without_traceback
from app.settings.api_keys import read_api_keys, read_operator_keys
from app.settings.config import (
    DEFAULT_STREAM_INTERVAL_MS,
    STREAM_PART_MS,
    AppConfig,
    parse_config,
)
from app.settings.embedding_settings import read_embedding_settings
from app.settings.reference import shown_options
from app.settings.sampling_defaults import read_sampling_defaults
from app.telemetry.telemetry import Telemetry, TelemetryOptions
from app.telemetry.traces.tracing_options import TracingOptions, check_exporter
from app.text.tokenizer import Tokenizer
from app.ui.page_options import PageOptions
from engine.config import EngineConfig, ResumeConfig
from engine.errors import ConfigError
from engine.runtime.protocol import EngineClient
from engine.runtime.replica.client_session import ClientLimits
from engine.runtime.replica.gang import LOAD_WORKER

logger = logging.getLogger(__name__)


def build(args: dict[str, Any]) -> Application:
    """Check everything that can be checked, then describe the deployments.

    Args:
        args: options of `AppConfig`.

    Raises:
        RayServeException: with one message that says what to change.
    """
    # Serve calls builders of one parameter
    return build_with(args)


def build_with(args: dict[str, Any], *, worker_factory: str = LOAD_WORKER) -> Application:
    """Like `build`, with workers of another kind; see `GangOptions`."""
    with config_errors_without_traceback():
        config = parse_config(args)
        # a node that builds the application need not run an engine
        engine_config = with_tokenizer(check(config, with_weights=False))
        settings = api_settings(config, engine_config)
        engine_config = with_prefixes(config, engine_config, settings)
    # every node finds its own copy of the model, of the same commit
    revision = revision_of(config, Path(engine_config.model_path))
    locate = partial(resolve, config.model, config.cache_folder, revision=revision)
    locate_texts = partial(locate, with_weights=False)
    with_weights = config.load_format == "safetensors"
    locate_all = partial(whole_folder, partial(locate, with_weights=with_weights))
    limits = client_limits(config, engine_config)
    gang = replace(gang_options(engine_config), worker_factory=worker_factory)
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        **resources(engine_config), **draining(config.drain_s)
    ).bind(engine_config, gang, locate_all, limits, config.metrics.ray)
    ends = engine_config.scheduler.eos_token_ids
    make_app = partial(make_http_app, locate=locate_texts, settings=settings, end_token_ids=ends)
    resume = ResumeConfig(resume_timeout_s=config.resume_timeout_s, max_resumes=config.max_resumes)
    return IngressDeployment.bind(  # type: ignore[attr-defined,no-any-return]
        engine,
        make_app,
        resume,
        recorder_options(config),
        config.start_wait_s,
        telemetry_options(config, engine_config),
    )


def revision_of(config: AppConfig, folder: Path) -> str | None:
    """Return what every node is to load, and warn if a later start may load something else."""
    commit = commit_of(config.model, folder)
    if commit is not None and config.revision is None:
        logger.warning("model_not_pinned model=%s revision=%s", config.model, commit)
    return commit or config.revision


def whole_folder(locate: Callable[[], Path]) -> Path:
    """Find a model's folder on the node that loads it, and compare it with its manifest.

    Raises:
        ConfigError: naming the files that have changed since they were converted.
    """
    folder = locate()
    verify(folder)
    return folder


def with_tokenizer(config: EngineConfig) -> EngineConfig:
    """Add what the tokenizer's files say: which token ids there are, and which of them are ends.

    An embedding may have more rows than there are tokens.
    """
    tokenizer = Tokenizer.load(Path(config.model_path))
    model = replace(config.model, num_token_ids=len(tokenizer.vocabulary))
    ends = dict.fromkeys((*model.eos_token_ids, *tokenizer.end_ids))
    known = tuple(token for token in ends if token < model.num_choices)
    return config.with_options(model=replace(model, eos_token_ids=known), eos_token_ids=known)


def with_prefixes(config: AppConfig, engine: EngineConfig, settings: ApiSettings) -> EngineConfig:
    """Add the prefixes that are to be pinned, as token ids."""
    if not config.pinned_prefixes:
        return engine
    tokenizer = Tokenizer.load(Path(engine.model_path))
    prefixes = encode_prefixes(config.pinned_prefixes, engine, tokenizer, settings.api_key_sha256)
    return replace(engine, pinned_prefixes=prefixes)


def make_http_app(
    client: EngineClient,
    telemetry: Telemetry | None = None,
    *,
    locate: Callable[[], Path],
    settings: ApiSettings,
    end_token_ids: Sequence[int],
) -> ASGIApp:
    """Make the HTTP application inside an ingress replica, and log what the model's folder says."""
    tokenizer = Tokenizer.load(locate())
    spelled = [
        tokenizer.vocabulary.piece(token).decode(errors="replace") for token in end_token_ids
    ]
    logger.info("model_ends token_ids=%s spelled=%s", list(end_token_ids), spelled)
    if defaults := settings.sampling_defaults:
        logger.info("sampling_defaults %s", " ".join(f"{k}={v}" for k, v in defaults.items()))
    # HAProxy, which Serve then has in front of this process, does not say who its client is
    settings = replace(settings, sees_clients=not RAY_SERVE_ENABLE_DIRECT_INGRESS)
    return DirectApp(build_app(client, tokenizer, settings, telemetry))


def client_limits(config: AppConfig, engine: EngineConfig) -> ClientLimits:
    """Return what a replica grants an ingress: which time lies between two chunks of a stream."""
    if config.stream_interval_ms is not None:
        return ClientLimits(coalesce_s=config.stream_interval_ms / 1e3, part_s=None)
    device = engine.device
    return ClientLimits(
        coalesce_s=DEFAULT_STREAM_INTERVAL_MS[device] / 1e3, part_s=STREAM_PART_MS[device] / 1e3
    )


def recorder_options(config: AppConfig) -> RecorderOptions | None:
    """Return where requests are recorded, with a new secret; None if they are not."""
    option = config.flight_recorder
    if option.folder is None:
        return None
    return RecorderOptions(
        folder=option.folder.expanduser(),
        max_bytes=int(option.max_mib * (1 << 20)),
        hash_key=secrets.token_bytes(32),
    )


def telemetry_options(config: AppConfig, engine: EngineConfig) -> TelemetryOptions:
    """Return what is measured and logged."""
    return TelemetryOptions(
        model_name=config.model_id,
        aliases="vllm" in config.metrics.aliases,
        has_ray_metrics=config.metrics.ray,
        has_access_log=config.access_log == "generation",
        tracing=tracing_options(config),
        page=page_options(config, engine),
        info=(
            metadata.version("pagoda"),
            engine.dtype,
            engine.device,
            str(engine.tensor_parallel_size),
            str(engine.block_size),
            str(engine.scheduler.max_model_len),
            engine.scheduler.memory_policy,
        ),
    )


def page_options(config: AppConfig, engine: EngineConfig) -> PageOptions | None:
    """Return what the page may take and shows of the settings; None for no page."""
    if not config.ui.enabled:
        return None
    return PageOptions(
        max_viewers=config.ui.max_viewers,
        max_hz=config.ui.max_hz,
        facts={
            "model": config.model_id,
            "version": metadata.version("pagoda"),
            "dtype": engine.dtype,
            "device": engine.device,
            "tensor_parallel_size": engine.tensor_parallel_size,
            "block_size": engine.block_size,
            "max_model_len": engine.scheduler.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
            "memory_policy": engine.scheduler.memory_policy,
            "has_keys": config.api_keys_file is not None,
        },
        settings=tuple(shown_options(config)),
    )


def tracing_options(config: AppConfig) -> TracingOptions | None:
    """Return where traces go; None for no traces.

    Raises:
        ConfigError: if the exporter is not installed, or the file of headers cannot be used.
    """
    option = config.tracing
    if option.endpoint is None:
        return None
    check_exporter()
    return TracingOptions(
        model_name=config.model_id,
        endpoint=option.endpoint,
        protocol=option.protocol,
        ratio=option.ratio,
        max_traces_per_s=option.max_traces_per_s,
        headers=_read_headers(option.headers_file),
    )


def _read_headers(path: Path | None) -> tuple[tuple[str, str], ...]:
    if path is None:
        return ()
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tracing.headers_file {path} cannot be read: {error}") from error
    pairs = [line.partition(":") for line in lines if line.strip()]
    if not all(colon and name.strip() for name, colon, _ in pairs):
        raise ConfigError(f"tracing.headers_file {path}: write one `name: value` a line")
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def api_settings(config: AppConfig, engine: EngineConfig) -> ApiSettings:
    """Return what the HTTP layer must know.

    Raises:
        ConfigError: if the file of API keys, or the model's generation_config.json, cannot be used.
    """
    keys = read_api_keys(config.api_keys_file)
    return ApiSettings(
        model_id=config.model_id,
        created_s=int(time.time()),
        max_model_len=engine.scheduler.max_model_len,
        vocab_size=engine.model.num_choices,
        eos_token_ids=engine.scheduler.eos_token_ids,
        unknown_parameters=config.unknown_parameters,
        tool_call_format=config.tool_call_format,
        reasoning_format=config.reasoning_format,
        embedding=read_embedding_settings(Path(engine.model_path), engine.model),
        max_body_bytes=int(config.limits.max_body_mib * (1 << 20)),
        max_body_values=config.limits.max_body_values,
        max_answer_items=config.limits.max_answer_items,
        max_held_bytes=int(config.limits.max_held_mib * (1 << 20)),
        max_client_held_bytes=int(config.limits.max_client_held_mib * (1 << 20)),
        deadlines=Deadlines(**config.deadlines.model_dump()),
        has_priorities=config.queue_policy == "priority",
        sampling_defaults=_sampling_defaults(config, engine),
        cors_origins=config.cors_origins,
        api_key_sha256=tuple(keys),
        key_limits=keys,
        operator_key_sha256=read_operator_keys(config.operator_keys_file),
    )


def _sampling_defaults(config: AppConfig, engine: EngineConfig) -> Mapping[str, float]:
    if config.generation_config == "ignore":
        return {}
    return read_sampling_defaults(Path(engine.model_path))
