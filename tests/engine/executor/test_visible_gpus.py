import os
import sys
from typing import Any

import pytest
import torch

from engine.errors import InvariantViolated
from engine.executor.rank_actor import RankActor
from engine.executor.visible_gpus import GivenGpus, SeenGpus, gpus_to_see, see_gpus, share_gpus
from tests.fakes import scripted_worker as scripted


def given(*places: tuple[str, str]) -> list[GivenGpus]:
    """Ranks by node and id; no id for one without a GPU."""
    return [GivenGpus(node, (gpu,) if gpu else ()) for node, gpu in places]


def test_ranks_of_a_node_see_the_gpus_of_all_in_one_order() -> None:
    seen = gpus_to_see(given(("a", "3"), ("a", "1"), ("a", "2")))
    assert seen == [SeenGpus(("3", "1", "2"), index) for index in range(3)]


def test_ranks_of_several_nodes_see_those_of_their_own() -> None:
    seen = gpus_to_see(given(("a", "0"), ("b", "0"), ("a", "1"), ("b", "5")))
    assert seen == [
        SeenGpus(("0", "1"), 0),
        SeenGpus(("0", "5"), 0),
        SeenGpus(("0", "1"), 1),
        SeenGpus(("0", "5"), 1),
    ]


def test_gpus_may_be_named_by_uuid() -> None:
    seen = gpus_to_see(given(("a", "GPU-b1"), ("a", "GPU-a2")))
    assert seen == [SeenGpus(("GPU-b1", "GPU-a2"), index) for index in range(2)]


def test_ranks_with_parts_of_one_gpu_have_one_index() -> None:
    assert gpus_to_see(given(("a", "1"), ("a", "1"))) == [SeenGpus(("1",), 0)] * 2


def test_a_rank_of_several_gpus_takes_its_first() -> None:
    seen = gpus_to_see([GivenGpus("a", ("0", "1")), GivenGpus("a", ("2", "3"))])
    assert [each.own for each in seen if each] == [0, 2]


@pytest.mark.parametrize("gpu", ["", "MIG-GPU-b1/1/0"])
def test_a_rank_without_a_whole_gpu_stays_with_what_it_sees(gpu: str) -> None:
    assert gpus_to_see(given(("a", gpu), ("a", gpu))) == [None, None]


def test_what_is_seen_is_chosen_before_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")
    see_gpus(["0", "1"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    # an operator's choice stays; without one there is no multicast
    assert os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "0"
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST")
    see_gpus(["0", "1"])
    assert os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InvariantViolated, match="before it uses one"):
        see_gpus(["2"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.ray
async def test_rank_actors_see_all_gpus_that_ray_gave_to_them(ray_cluster: None) -> None:
    import ray

    # a function within another travels without this module, which imports torch
    def look(actor: RankActor) -> tuple[str, int | None, bool]:
        return os.environ["CUDA_VISIBLE_DEVICES"], actor._device_index, "torch" in sys.modules

    config = scripted.engine_config()
    actors: list[Any] = [
        ray.remote(RankActor)
        .options(num_cpus=0, num_gpus=1, max_concurrency=4)
        .remote(config, rank, "file:///unused", "tests.fakes.scripted_worker:load_worker")
        for rank in range(2)
    ]
    try:
        assert sorted(ray.get([actor.given_gpus.remote() for actor in actors])) == [
            (ray.get_runtime_context().get_node_id(), (gpu,)) for gpu in "01"
        ]
        await share_gpus(actors)
        ray.get([actor.load.remote() for actor in actors])
        # what follows is no task for which Ray chooses again
        seen = ray.get([actor.__ray_call__.remote(look) for actor in actors])
    finally:
        for actor in actors:
            ray.kill(actor)
    (first, *_), (second, *_) = seen
    assert first == second
    assert sorted(first.split(",")) == ["0", "1"]
    assert [index for _, index, _ in seen] == [0, 1]
    # nothing can have touched CUDA: torch comes with a worker that computes
    assert not any(has_torch for *_, has_torch in seen)
