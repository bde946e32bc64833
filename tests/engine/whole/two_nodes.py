"""A cluster of two nodes on this machine, with ranks on both.

`python -m tests.engine.whole.two_nodes FOLDER FILE` writes as JSON the tokens of `PROMPTS` from a
gang, and their texts from the application, with the nodes of all processes of both. It is a process
of its own because a process can be in one Ray cluster only.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table

from app.main import build
from engine.config import EngineConfig
from engine.model_config import read_model_config
from engine.runtime.replica.gang import Gang, GangOptions, start_gang
from engine.runtime.replica.supervisor import Supervisor
from engine.types import SamplingParams
from load_tests.free_port import free_port
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


def listener_of_each(ranks: list[Any]) -> list[str]:
    """What each rank awaited the scheduler with."""
    return ray.get(
        [rank.__ray_call__.remote(lambda self: type(self._listener).__name__) for rank in ranks]
    )


def ask_spread(folder: Path) -> dict[str, Any]:
    """Ask the application, whose engine replica Ray spreads over the nodes."""
    args = {
        "model": str(folder),
        "device": "cpu",
        "dtype": "float32",
        "num_blocks": 512,
        "tensor_parallel_size": 2,
        "placement_strategy": "SPREAD",
    }
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(args))
    [group] = placement_group_table().values()
    body = {"model": folder.name, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    url = f"http://127.0.0.1:{port}/v1/completions"
    answers = [
        httpx.post(url, json=body | {"prompt": prompt}, timeout=60).json() for prompt in PROMPTS
    ]
    serve.shutdown()  # type: ignore[no-untyped-call]
    texts = [answer["choices"][0]["text"] for answer in answers]
    return {"texts": texts, "nodes": list(group["bundles_to_node_id"].values())}


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
            actors = [each.actor for each in (gangs[0]._scheduler, *gangs[0]._ranks)]
            nodes = await asyncio.to_thread(node_of_each, actors)
            listeners = await asyncio.to_thread(listener_of_each, actors[1:])
    finally:
        await supervisor.close()
    return {"tokens": tokens, "nodes": nodes, "listeners": listeners}


if __name__ == "__main__":
    with two_nodes():
        model_folder = Path(sys.argv[1])
        found = {"served": ask_spread(model_folder)}
        found["gang"] = asyncio.run(generate_spread(model_folder))
        Path(sys.argv[2]).write_text(json.dumps(found))
