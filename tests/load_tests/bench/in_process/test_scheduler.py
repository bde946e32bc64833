import json
from pathlib import Path

from load_tests.__main__ import main
from load_tests.bench.in_process.scheduler import measure


def test_every_step_of_the_full_batch_is_timed() -> None:
    times_s = measure(num_sequences=5, num_steps=12)
    assert {name: len(times) for name, times in times_s.items()} == {"schedule": 12, "update": 12}
    assert min(map(min, times_s.values())) > 0


def test_figures_are_written(tmp_path: Path) -> None:
    status = main(
        ["scheduler", "--sequences", "3", "--steps", "10", "--output", str(tmp_path), "--log"]
    )
    assert status == 0
    (path,) = tmp_path.glob("scheduler_*.json")
    figures = json.loads(path.read_text())
    for name in ("schedule_s", "update_s"):
        spread = figures[name]
        assert spread["least"] <= spread["p10"] <= spread["median"] <= spread["p90"]
    assert path.stem in (tmp_path / "LOG.md").read_text()
