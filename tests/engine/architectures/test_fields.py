from itertools import product
from typing import Any

import pytest

from engine.architectures.fields import Fields
from engine.errors import ConfigError


@pytest.mark.parametrize("config", [{}, {"x": None}])
def test_what_is_missing_or_null_takes_the_default(config: dict[str, Any]) -> None:
    fields = Fields(config)
    assert fields.size("x", 3) == 3
    assert fields.number("x", 0.5) == 0.5
    assert fields.flag("x", True)
    assert fields.inner("x") == {}
    assert fields.items("x", 2) is None
    fields.require("x", "silu")


def test_only_what_is_missing_takes_the_default_of_the_family() -> None:
    assert Fields({}, {"x": 8}).size("x", 4) == 8
    assert Fields({"x": None}, {"x": 8}).size("x", 4) == 4
    assert Fields({"x": 2}, {"x": 8}).size("x", 4) == 2


def test_good_values_are_read() -> None:
    assert Fields({"x": 7}).size("x") == 7
    assert (Fields({"x": 2}).number("x"), type(Fields({"x": 2}).number("x"))) == (2.0, float)
    assert not Fields({"x": False}).flag("x", True)
    assert Fields({"x": [1, 2.5]}).numbers("x", 2) == (1.0, 2.5)
    Fields({"x": "gelu"}).require("x", "silu", "gelu")


@pytest.mark.parametrize(
    ("read", "value"),
    [
        *product(["size"], [None, 0, -1, True, 1.0, "1"]),
        *product(["number"], [None, 0, -1.0, float("inf"), float("nan"), True, "1"]),
        *product(["flag"], [2, "true", []]),
        *product(["inner"], [2, "true", [1]]),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(read: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"x .*is"):
        getattr(Fields({"x": value}), read)("x")


@pytest.mark.parametrize("value", [None, 3, [1.0], [1.0, 0.0], [1.0, True]])
def test_a_list_of_the_wrong_kind_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match=r"x is .*a list of 2 positive numbers"):
        Fields({"x": value}).numbers("x", 2)


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a\.x 'gelu' is not supported, only 'silu'"):
        Fields({"x": "gelu"}, what="a").require("x", "silu")


def test_a_family_may_spell_a_field_in_its_own_way() -> None:
    spellings = {"hidden_size": "n_embd"}
    assert Fields({"n_embd": 5}, spellings=spellings).size("hidden_size") == 5
    assert Fields({"hidden_size": 5}, spellings=spellings).size("hidden_size") == 5
    with pytest.raises(ConfigError, match="n_embd is 0"):
        Fields({"n_embd": 0}, spellings=spellings).size("hidden_size")
    with pytest.raises(ConfigError, match="n_embd 5 and hidden_size 6 differ"):
        Fields({"n_embd": 5, "hidden_size": 6}, spellings=spellings).size("hidden_size")


def test_what_no_reader_knows_is_refused() -> None:
    fields = Fields({"x": 1, "model_type": "llama", "_private": 3, "off": None, "mlp_bias": False})
    with pytest.raises(ConfigError, match="x is not known here"):
        fields.refuse_unread()
    fields.size("x")
    fields.refuse_unread()
    with pytest.raises(ConfigError, match="mlp_bias True is not supported, only False"):
        Fields({"mlp_bias": True}).refuse_unread()
