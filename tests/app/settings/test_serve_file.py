from pathlib import Path

import pytest

from app.settings.serve_file import applications, policies
from engine.errors import ConfigError


def test_every_application_is_named_with_its_args(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications: [{name: one, args: {model: x}}, {name: two}]")
    assert applications(path) == [("one", {"model": "x"}), ("two", {})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("", "is not a Serve configuration file"),
        ("3", "is not a Serve configuration file"),
        ("a: [", "is not a Serve configuration file"),
        ("applications: 3", "is not a Serve configuration file"),
        ("applications: [{}]", "is not a Serve configuration file"),
        ("applications: []", "has no application"),
    ],
)
def test_another_file_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"serve\.yaml {message}"):
        applications(path)


def test_policies_are_found_whatever_stands_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "applications: [{name: none}, {name: one, deployments: [{name: a}, "
        "{name: b, autoscaling_config: auto}, {name: c, autoscaling_config: {policy: {x: 1}}}]}]"
    )
    assert policies(path) == [("one", {"x": 1})]
