import os
import stat
from pathlib import Path

import pytest
from ray._private import ray_constants

from app.command.own_ray import hide_token, own_ray
from engine.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_its_files_are_in_a_folder_of_this_user(tmp_path: Path) -> None:
    for _ in range(2):
        environment = own_ray({"TMPDIR": str(tmp_path), "HOME": str(tmp_path)})
        folder = Path(environment["RAY_TMPDIR"])
        assert folder.parent == tmp_path
        assert mode(folder) == 0o700
        # one that was there is closed as well
        folder.chmod(0o777)


def test_it_keeps_to_loopback(tmp_path: Path) -> None:
    environment = own_ray({"TMPDIR": str(tmp_path)})
    assert environment[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] == "0"


def test_it_looks_less_often_at_what_does_not_change(tmp_path: Path) -> None:
    environment = own_ray({"TMPDIR": str(tmp_path)})
    assert float(environment["RAY_SERVE_CONTROL_LOOP_INTERVAL_S"]) > 0.1
    assert environment["RAY_task_events_report_interval_ms"] == "0"


def test_it_measures_itself_only_for_somebody(tmp_path: Path) -> None:
    for name in ("RAY_enable_metrics_collection", "RAY_SERVE_HAPROXY_METRICS_ENABLED"):
        assert own_ray({"TMPDIR": str(tmp_path)})[name] == "0"
        assert name not in own_ray({"TMPDIR": str(tmp_path)}, has_metrics=True)


def test_what_is_set_already_stays(tmp_path: Path) -> None:
    given = dict.fromkeys(own_ray({"TMPDIR": str(tmp_path)}), "mine") | {"X": "y"}
    assert own_ray(given) == given


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_no_folder_of_this_user_is_named(tmp_path: Path, is_link: bool) -> None:
    path = tmp_path / f"pagoda-{os.getuid()}"
    if is_link:
        path.symlink_to(tmp_path)
    else:
        path.write_text("")
    with pytest.raises(ConfigError, match="is not a folder of this user"):
        own_ray({"TMPDIR": str(tmp_path)})


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        own_ray({"TMPDIR": str(tmp_path / "missing")})


def test_others_lose_their_rights_to_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    hide_token({})
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    named = tmp_path / "token"
    for path, environment in (token, {}), (named, {"RAY_AUTH_TOKEN_PATH": str(named)}):
        path.write_text("secret")
        path.chmod(0o644)
        hide_token(environment)
        assert mode(path) == 0o600
