"""The prefixes of the configuration become token ids, or an error that names one."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.generation.pinned_prefixes import encode_prefixes
from app.generation.tenancy import tenant_salt
from app.settings.config import parse_config
from app.text.template_options import TemplateOptions
from engine.config import EngineConfig, PrefixConfig
from engine.errors import ConfigError
from tests.app.api.server import encode
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes import scripted_worker as scripted

DIGESTS = tuple(hashlib.sha256(key).digest() for key in (b"one", b"two"))
TEXT = "The quick brown fox jumps over the lazy dog."


def encoded(options: list[dict[str, Any]], *, keys: tuple[bytes, ...] = ()) -> list[PrefixConfig]:
    config = parse_config({"pinned_prefixes": options})
    engine: EngineConfig = scripted.engine_config(pinned_prefix_share=0.2)
    return list(encode_prefixes(config.pinned_prefixes, engine, chatml_tokenizer(), keys))


def test_configured_prefixes_become_token_ids(tmp_path: Path) -> None:
    (tmp_path / "prefix.txt").write_text(TEXT, encoding="utf-8")
    text, file, chat = encoded(
        [
            {"name": "text", "text": TEXT, "ttl_s": 60},
            {"name": "file", "file": str(tmp_path / "prefix.txt")},
            {"name": "chat", "messages": [{"role": "system", "content": "Be kind."}]},
        ]
    )
    assert (text.token_ids, text.ttl_s, text.salt) == (
        tuple(encode(TEXT)),
        60.0,
        tenant_salt(b"", None),
    )
    assert (file.token_ids, file.ttl_s) == (text.token_ids, None)
    messages = [{"role": "system", "content": "Be kind."}]
    ids = chatml_tokenizer().encode_chat(messages, TemplateOptions(add_generation_prompt=False))
    assert chat.token_ids == tuple(ids)


def test_a_prefix_with_a_token_that_the_model_does_not_have_is_named() -> None:
    config = parse_config({"pinned_prefixes": [{"name": "a", "text": TEXT}]})
    engine = scripted.engine_config(pinned_prefix_share=0.2)
    small = replace(engine, model=replace(engine.model, vocab_size=max(encode(TEXT))))
    with pytest.raises(ConfigError, match="'a' has a token that the model does not have"):
        encode_prefixes(config.pinned_prefixes, small, chatml_tokenizer(), ())


def test_more_prefixes_than_a_tenant_may_pin_are_refused() -> None:
    options = [{"name": f"p{number}", "text": TEXT} for number in range(65)]
    with pytest.raises(ConfigError, match="has 65 items, max_pinned_prefixes is 64"):
        encoded(options)


def test_each_tenant_has_its_own_copy() -> None:
    prefixes = encoded([{"name": "a", "text": "The quick brown fox"}], keys=DIGESTS)
    assert [prefix.salt for prefix in prefixes] == [tenant_salt(key, None) for key in DIGESTS]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "a b", "text": TEXT}, r"pinned_prefixes\.0\.name is 'a b'"),
        ({"name": "a"}, r"pinned_prefixes\.0 .*exactly one of text, file and messages"),
        ({"name": "a", "text": TEXT, "file": "x"}, "exactly one of"),
        ({"name": "a", "text": TEXT, "ttl_s": -1}, r"pinned_prefixes\.0\.ttl_s"),
        ({"name": "a", "txt": TEXT}, "unknown option 'pinned_prefixes.0.txt'"),
        ({"name": "a", "file": "/no/such/file"}, "'a' cannot be read"),
        ({"name": "a", "text": "x"}, "'a' has 1 tokens, fewer than block_size 4"),
        ({"name": "a", "text": TEXT * 6}, r"'a' does not fit.*need \d+ blocks.*allows 12"),
        ({"name": "a", "text": TEXT * 30}, "'a' has .* max_model_len 200"),
        ({"name": "b", "text": TEXT}, "'b' is there twice"),
    ],
)
def test_a_bad_prefix_is_named(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoded([entry, {"name": "b", "text": TEXT}])


def test_a_pool_that_is_not_measured_yet_takes_any_prefix() -> None:
    config = parse_config({"pinned_prefixes": [{"name": "a", "text": TEXT}]})
    engine = scripted.engine_config(pinned_prefix_share=0.2, num_blocks=0, device="cuda")
    [prefix] = encode_prefixes(config.pinned_prefixes, engine, chatml_tokenizer(), ())
    assert prefix.token_ids == tuple(encode(TEXT))


@pytest.mark.parametrize("num_blocks", [0, 60])
def test_without_a_share_nothing_is_pinned(num_blocks: int) -> None:
    config = parse_config({"pinned_prefixes": [{"name": "a", "text": TEXT}]})
    engine = scripted.engine_config(num_blocks=num_blocks)
    with pytest.raises(ConfigError, match="pinned_prefix_share 0 allows 0; raise the share"):
        encode_prefixes(config.pinned_prefixes, engine, chatml_tokenizer(), ())


@pytest.mark.parametrize(("num_tokens", "fits"), [(199, True), (200, False)])
def test_a_prefix_leaves_room_for_a_token(num_tokens: int, fits: bool) -> None:
    """The context has 200 tokens."""
    config = parse_config({"pinned_prefixes": [{"name": "a", "text": "\t" * num_tokens}]})
    engine = scripted.engine_config(pinned_prefix_share=0.9)
    if fits:
        [prefix] = encode_prefixes(config.pinned_prefixes, engine, chatml_tokenizer(), ())
        assert len(prefix.token_ids) == num_tokens
        return
    with pytest.raises(ConfigError, match="leaves no room in max_model_len 200"):
        encode_prefixes(config.pinned_prefixes, engine, chatml_tokenizer(), ())


def test_blocks_that_prefixes_share_need_room_once() -> None:
    """Each has 9 blocks, and 12 may be pinned."""
    common = "\t" * 32
    prefixes = [{"name": "a", "text": f"{common}aaaa"}, {"name": "b", "text": f"{common}bbbb"}]
    assert len(encoded(prefixes)) == 2
    with pytest.raises(ConfigError, match=r"'b' does not fit.*need 18 blocks"):
        encoded([prefixes[0], {"name": "b", "text": f"b{common}bbb"}])


def test_the_copies_of_all_tenants_must_fit() -> None:
    prefix = {"name": "a", "text": "\t" * 28}
    assert len(encoded([prefix])) == 1
    with pytest.raises(ConfigError, match=r"'a' does not fit.*need 14 blocks"):
        encoded([prefix], keys=DIGESTS)
