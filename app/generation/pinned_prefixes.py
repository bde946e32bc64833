"""From the prefixes of the configuration to token ids, or to an error that names one."""

from collections.abc import Sequence

from app.generation.tenancy import tenant_salt
from app.settings.config import PinnedPrefixOption
from app.text.template_options import TemplateOptions
from app.text.tokenizer import Tokenizer
from engine.config import EngineConfig, PrefixConfig
from engine.errors import ConfigError, InvalidRequest


def encode_prefixes(
    options: Sequence[PinnedPrefixOption],
    engine: EngineConfig,
    tokenizer: Tokenizer,
    api_key_sha256: Sequence[bytes],
) -> tuple[PrefixConfig, ...]:
    """Tokenise prefixes as the API would, once for each tenant: tenants share no blocks.

    Args:
        api_key_sha256: digests of the accepted keys; empty where every caller is one tenant.

    Raises:
        ConfigError: naming the prefix that is bad or does not fit the budget.
    """
    most = engine.scheduler.max_pinned_prefixes
    if len(options) > most:
        raise ConfigError(
            f"pinned_prefixes has {len(options)} items, max_pinned_prefixes is {most}"
        )
    salts = [tenant_salt(digest, None) for digest in api_key_sha256 or [b""]]
    encoded: list[PrefixConfig] = []
    blocks: set[tuple[int, ...]] = set()
    for option in options:
        if any(option.name == other.name for other in encoded):
            raise _error(option, "is there twice; choose another name")
        token_ids = _encode(option, engine, tokenizer)
        size = engine.block_size
        blocks |= {token_ids[:end] for end in range(size, len(token_ids) + 1, size)}
        _check_budget(option, engine, len(blocks) * len(salts))
        encoded.append(PrefixConfig(name=option.name, token_ids=token_ids, ttl_s=option.ttl_s))
    return tuple(
        PrefixConfig(name=p.name, token_ids=p.token_ids, ttl_s=p.ttl_s, salt=salt)
        for salt in salts
        for p in encoded
    )


def _encode(
    option: PinnedPrefixOption, engine: EngineConfig, tokenizer: Tokenizer
) -> tuple[int, ...]:
    try:
        if option.messages is not None:
            messages = [message.for_template() for message in option.messages]
            ids = tokenizer.encode_chat(messages, TemplateOptions(add_generation_prompt=False))
        else:
            ids = tokenizer.encode(_text(option))
    except InvalidRequest as error:
        raise _error(option, f"cannot be encoded: {error}") from error
    if len(ids) < engine.block_size:
        raise _error(
            option,
            f"has {len(ids)} tokens, fewer than block_size {engine.block_size}; only whole blocks "
            "are pinned",
        )
    limit = engine.scheduler.max_model_len
    if len(ids) >= limit:
        raise _error(
            option, f"has {len(ids)} tokens, which leaves no room in max_model_len {limit}"
        )
    if max(ids) >= engine.model.num_choices:
        raise _error(option, "has a token that the model does not have")
    return tuple(ids)


def _text(option: PinnedPrefixOption) -> str:
    if option.file is None:
        assert option.text is not None
        return option.text
    try:
        return option.file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _error(option, f"cannot be read: {error}") from error


def _check_budget(option: PinnedPrefixOption, engine: EngineConfig, num_blocks: int) -> None:
    share, num_all = engine.scheduler.pinned_prefix_share, engine.num_blocks
    if share and not num_all:
        # only the workers will know: a replica that starts finds out by pinning
        return
    budget = engine.scheduler.num_pinnable(num_all)
    if num_blocks > budget:
        raise _error(
            option,
            f"does not fit: the prefixes up to it need {num_blocks} blocks, and "
            f"pinned_prefix_share {share:g} allows {budget}; raise the share, enlarge the pool or "
            "shorten the prefixes",
        )


def _error(option: PinnedPrefixOption, reason: str) -> ConfigError:
    return ConfigError(f"pinned_prefixes: {option.name!r} {reason}")
