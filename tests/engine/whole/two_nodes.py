"""A cluster of two nodes on this machine, and a gang whose second rank runs on the other node.

`python -m tests.engine.whole.two_nodes FOLDER` prints the tokens of `PROMPTS`, and the nodes of the
ranks, as JSON. It is a process of its own because a process can be in one Ray cluster only.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group

from engine.config import EngineConfig
from engine.model_config import read_model_config
from engine.runtime.replica.gang import Gang, GangOptions, start_gang
from engine.runtime.replica.supervisor import Supervisor
from engine.types import SamplingParams
from tests.engine.runtime.serving import client_of, generate

PROMPTS = [[1, 2, 3], list(range(30)), [7]]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20}
# of the scheduler, rank 0 and rank 1
BUNDLES = [{"CPU": 0.1, "here": 1}, {"CPU": 0.1, "here": 1}, {"CPU": 0.1, "away": 1}]


@contextmanager
def two_nodes() -> Iterator[None]:
    """This process is on the first of them."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args=NODE | {"resources": {"here": 9}, "include_dashboard": False},
    )
    try:
        cluster.add_node(**NODE, resources={"away": 9})
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def node_of_each(actors: list[Any]) -> list[str]:
    """Ray's name of the node of each actor."""
    return ray.get(
        [
            actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
            for actor in actors
        ]
    )


async def be_ready(supervisor: Supervisor, is_first: bool) -> None:
    """The prompts are the first requests."""


async def generate_spread(folder: Path) -> dict[str, Any]:
    """Run the prompts on two ranks, each on a node of its own with a folder of its own."""
    group = placement_group(BUNDLES, strategy="SPREAD")
    await group.ready()
    ray.util.get_current_placement_group = lambda: group
    config = EngineConfig.from_options(
        model_path=str(folder),
        model=read_model_config(folder),
        dtype="float32",
        device="cpu",
        tensor_parallel_size=2,
        placement_strategy="SPREAD",
        num_blocks=512,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=256,
    )
    other = folder.with_name("other_node")
    shutil.copytree(folder, other)
    options = GangOptions(num_cpus_per_rank=0.1, spans_nodes=True, locate=lambda: other)
    gangs: list[Gang] = []

    async def start() -> Gang:
        gangs.append(await start_gang(config, options))
        return gangs[-1]

    supervisor = Supervisor(start, config, be_ready, replica="a")
    await supervisor.start()
    try:
        async with client_of(supervisor) as client:
            requests = [generate(client, prompt, GREEDY) for prompt in PROMPTS]
            tokens = await asyncio.gather(*requests)
            actors = [rank.actor for rank in gangs[0]._ranks]
            nodes = await asyncio.to_thread(node_of_each, actors)
    finally:
        await supervisor.close()
    return {"tokens": tokens, "nodes": nodes}


if __name__ == "__main__":
    with two_nodes():
        sys.stdout.write(json.dumps(asyncio.run(generate_spread(Path(sys.argv[1])))))
