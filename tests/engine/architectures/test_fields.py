from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from engine.architectures.fields import flag, head_dim_of, number, require, size
from engine.errors import ConfigError


@pytest.mark.parametrize("config", [{}, {"x": None}])
def test_what_is_missing_or_null_takes_the_default(config: dict[str, Any]) -> None:
    assert size(config, "x", 3) == 3
    assert number(config, "x", 0.5) == 0.5
    assert flag(config, "x", True)
    require(config, "x", "silu")


def test_good_values_are_read() -> None:
    assert size({"x": 7}, "x") == 7
    assert (number({"x": 2}, "x"), type(number({"x": 2}, "x"))) == (2.0, float)
    assert not flag({"x": False}, "x", True)
    require({"x": "silu"}, "x", "silu")


@pytest.mark.parametrize(
    ("read", "value"),
    [
        *product([size], [None, 0, -1, True, 1.0, "1"]),
        *product([number], [None, 0, -1.0, float("inf"), float("nan"), True, "1"]),
        *product([flag], [2, "true", []]),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(read: Callable[..., Any], value: object) -> None:
    with pytest.raises(ConfigError, match="x is"):
        read({"x": value}, "x")


def test_a_variant_that_is_not_supported_is_refused() -> None:
    with pytest.raises(ConfigError, match="x 'gelu' is not supported, only 'silu'"):
        require({"x": "gelu"}, "x", "silu")


def test_heads_share_the_hidden_size_evenly() -> None:
    assert head_dim_of(64, 4) == 16
    with pytest.raises(ConfigError, match="not a multiple of 5 heads"):
        head_dim_of(64, 5)
