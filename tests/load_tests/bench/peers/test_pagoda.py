import asyncio
from dataclasses import replace
from pathlib import Path

from load_tests.bench.peers.measures import Online
from load_tests.bench.peers.pagoda import PagodaSystem
from load_tests.bench.peers.system import arrivals
from load_tests.model_folders import model_folder
from tests.load_tests.bench.peers.settings import knobs


def test_our_system_counts_what_it_finds_computed(tmp_path: Path) -> None:
    measure = Online(trace="system-prompts", rate_per_s=20.0, duration_s=0.3, seed=0)
    settings = replace(
        knobs(model_folder("tiny", tmp_path)), max_model_len=2048, max_num_batched_tokens=2048
    )
    system = PagodaSystem(settings, has_prefix_cache=True)
    seen: set[tuple[int, ...]] = set()
    for work in arrivals(measure):
        (timeline,) = asyncio.run(system.serve([replace(work, due_s=0.0)]))
        start = tuple(work.prompt[:1024])
        assert timeline.num_cached == (1024 if start in seen else 0)
        seen.add(start)
    system.close()
    assert 1 < len(seen) < 6
