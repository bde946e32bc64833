import pytest
from ray.serve.exceptions import RayServeException

from app.serve.startup import config_errors_without_traceback
from engine.errors import ConfigError


def test_a_config_error_becomes_the_one_message_that_serve_shows() -> None:
    with pytest.raises(RayServeException) as caught, config_errors_without_traceback():
        raise ConfigError("block_size is 0")
    assert str(caught.value) == "configuration error: block_size is 0"
    assert caught.value.__cause__ is None


def test_our_own_bugs_keep_their_traceback() -> None:
    with pytest.raises(KeyError), config_errors_without_traceback():
        raise KeyError("x")
