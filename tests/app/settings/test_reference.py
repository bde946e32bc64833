import pytest
import yaml

from app.settings.config import AppConfig, parse_config
from app.settings.reference import (
    GROUPS,
    SERVE_FIELDS,
    all_options,
    reference,
    serve_fields,
    shown_options,
)
from tests import ROOT

SERVE_CONFIG = yaml.safe_load((ROOT / "serve_config.yaml").read_text(encoding="utf-8"))


def row(option: str) -> list[str]:
    [line] = [line for line in reference(SERVE_CONFIG).splitlines() if f"| `{option}` |" in line]
    return line.strip("| ").split(" | ")


def test_the_page_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference(SERVE_CONFIG), "make docs writes it anew"


def test_every_option_is_in_one_group() -> None:
    shown = [name for names in GROUPS.values() for name in names]
    assert sorted(shown) == sorted(all_options())
    assert {name.partition(".")[0] for name in shown} == AppConfig.model_fields.keys()


def test_an_option_without_a_group_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.settings.reference.GROUPS", {"Model": ("model",)})
    with pytest.raises(KeyError, match="in no group: revision"):
        reference(SERVE_CONFIG)


def test_every_option_has_a_text_and_a_default() -> None:
    for name in all_options():
        _, default, values, text = row(name)
        assert default
        assert values
        assert len(text) > 10, name


@pytest.mark.parametrize(
    ("option", "default", "values"),
    [
        ("prompt_share", "0.5", "above 0 to 1"),
        ("max_num_waiting", "1024", "1 to 1048576"),
        (
            "max_num_seqs",
            "64 on a CPU, 256 on a GPU; at most `max_num_batched_tokens`",
            "1 to 4096",
        ),
        ("max_model_len", "the model's, as far as the KV cache holds it", "at least 2"),
        (
            "swap_gib",
            "0 on a CPU; on a GPU 0.6 of the node's object store, by GPUs, and at most 16",
            "0 to 1024 GiB",
        ),
        ("prefix_cache", "`true`", "`true`, `false`"),
        ("preemption", "`auto`", "`auto`, `swap`, `recompute`"),
        ("limits.max_body_mib", "4", "above 0 to 64 MiB"),
        ("api_keys_file", "none: everyone is served", "path"),
        ("ttl_s", "none: never", "above 0 s"),
        ("name", "must be given", "text"),
    ],
)
def test_defaults_and_ranges_are_written_in_words(option: str, default: str, values: str) -> None:
    assert row(option)[1:3] == [default, values]


def test_every_field_of_the_serve_config_has_a_text() -> None:
    fields = serve_fields(SERVE_CONFIG)
    assert fields.keys() == SERVE_FIELDS.keys()
    assert fields["http_options.port"] == "8000"
    assert fields["logging_config.enable_access_log"] == "false"
    assert fields["Engine.autoscaling_config.max_replicas"] == "2"


def test_operators_are_shown_every_option_without_texts_and_credentials() -> None:
    config = parse_config(
        {
            "num_blocks": 64,
            "pinned_prefix_share": 0.1,
            "pinned_prefixes": [{"name": "guide", "text": "a secret text"}],
            "tracing": {"endpoint": "http://user:password@collector:4318/v1/traces"},
        }
    )
    shown = {name: (value, is_default) for name, value, is_default in shown_options(config)}
    assert shown.keys() == all_options().keys()
    assert shown["num_blocks"] == ("64", False)
    assert shown["block_size"][1]
    assert shown["pinned_prefixes"] == ('["guide"]', False)
    assert shown["tracing.endpoint"] == ('"http://***@collector:4318/v1/traces"', False)
    assert "secret" not in str(shown)
    assert "password" not in str(shown)
