"""The application of serve_config.yaml: `import_path: app.main:build`."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray.serve import Application
from starlette.types import ASGIApp

from app.generation.pinned_prefixes import encode_prefixes
from app.http.routes import build_app
from app.models.model_store import commit_of, resolve
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
from app.settings.api_keys import read_api_keys
from app.settings.config import DEFAULT_STREAM_INTERVAL_MS, AppConfig, parse_config
from app.settings.sampling_defaults import read_sampling_defaults
from app.text.tokenizer import Tokenizer
from engine.config import EngineConfig, ResumeConfig
from engine.runtime.protocol import EngineClient
from engine.runtime.replica.client_session import ClientLimits

logger = logging.getLogger(__name__)


def build(args: dict[str, Any]) -> Application:
    """Check everything that can be checked, then describe the deployments.

    Args:
        args: options of `AppConfig`.

    Raises:
        RayServeException: with one message that says what to change.
    """
    with config_errors_without_traceback():
        config = parse_config(args)
        # a node that builds the application need not run an engine
        engine_config = with_tokenizer(check(config, with_weights=False))
        settings = api_settings(config, engine_config)
        engine_config = with_prefixes(config, engine_config, settings)
    # every node finds its own copy of the model, of the same commit
    revision = commit_of(config.model, Path(engine_config.model_path)) or config.revision
    locate = partial(resolve, config.model, config.cache_folder, revision=revision)
    locate_texts = partial(locate, with_weights=False)
    locate_all = partial(locate, with_weights=config.load_format == "safetensors")
    limits = ClientLimits(coalesce_s=stream_interval_s(config, engine_config))
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        **resources(engine_config), **draining(config.drain_s)
    ).bind(engine_config, gang_options(engine_config), locate_all, limits)
    ends = engine_config.scheduler.eos_token_ids
    make_app = partial(make_http_app, locate=locate_texts, settings=settings, end_token_ids=ends)
    resume = ResumeConfig(resume_timeout_s=config.resume_timeout_s, max_resumes=config.max_resumes)
    return IngressDeployment.bind(  # type: ignore[attr-defined,no-any-return]
        engine, make_app, resume, recorder_options(config), config.start_wait_s
    )


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
    return build_app(client, tokenizer, settings)


def stream_interval_s(config: AppConfig, engine: EngineConfig) -> float:
    """Least seconds between two chunks of a stream."""
    milliseconds = config.stream_interval_ms
    if milliseconds is None:
        milliseconds = DEFAULT_STREAM_INTERVAL_MS[engine.device]
    return milliseconds / 1e3


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
        max_body_bytes=int(config.limits.max_body_mib * (1 << 20)),
        max_body_values=config.limits.max_body_values,
        max_answer_items=config.limits.max_answer_items,
        max_held_bytes=int(config.limits.max_held_mib * (1 << 20)),
        max_client_held_bytes=int(config.limits.max_client_held_mib * (1 << 20)),
        deadlines=Deadlines(**config.deadlines.model_dump()),
        has_priorities=config.queue_policy == "priority",
        sampling_defaults=read_sampling_defaults(Path(engine.model_path)),
        cors_origins=config.cors_origins,
        api_key_sha256=tuple(keys),
        key_limits=keys,
    )
