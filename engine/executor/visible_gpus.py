"""Which GPUs each rank of a gang sees: those of all ranks on its node, in one order.

Ray shows an actor only the GPUs that it gave to it, so every rank would call its own device 0. But
torch's symmetric memory, in which ranks write to each other's GPUs, takes ranks of one node for one
device if they name the same one. So each rank sees the GPUs of all, and has an index of its own.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray

from engine.errors import InvariantViolated

logger = logging.getLogger(__name__)

_VARIABLE = "CUDA_VISIBLE_DEVICES"
# what ranks sum in each other's memory needs none of torch's multicast objects
_NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
# of AMD's GPUs, which do not share memory this way
_VARIABLE_OF_OTHERS = "HIP_VISIBLE_DEVICES"
# of a part of a GPU; CUDA shows one of them to a process, whatever the variable says
_PART_OF_GPU = "MIG-"


class GivenGpus(NamedTuple):
    """What Ray gave to a rank.

    Attributes:
        node: Ray's name of the node.
        ids: of the GPUs, as the variable of CUDA spells them: numbers or UUIDs; none for CPU ranks.
    """

    node: str
    ids: tuple[str, ...]


class SeenGpus(NamedTuple):
    """What a rank is to see.

    Attributes:
        ids: of the GPUs, in the order of their indices.
        own: index of the rank's own.
    """

    ids: tuple[str, ...]
    own: int


async def share_gpus(ranks: Sequence[Any]) -> None:
    """Have each rank see the GPUs of all ranks of its node.

    Args:
        ranks: actors that have not loaded yet.
    """
    given = await asyncio.gather(*(rank.given_gpus.remote() for rank in ranks))
    seen = gpus_to_see(given)
    words = (f"{','.join(each.ids)}[{each.own}]" if each else "as_given" for each in seen)
    logger.info("gpus_seen ranks=%s", " ".join(words))
    pairs = zip(ranks, seen, strict=True)
    await asyncio.gather(*(rank.see_gpus.remote(each) for rank, each in pairs if each))


def gpus_to_see(given: Sequence[GivenGpus]) -> list[SeenGpus | None]:
    """What each rank is to see; None where it stays with what Ray has it see."""
    return [_seen(own, [each for each in given if each.node == own.node]) for own in given]


def _seen(own: GivenGpus, on_node: Sequence[GivenGpus]) -> SeenGpus | None:
    # ranks that have parts of one GPU name it twice
    ids = tuple(dict.fromkeys(gpu for each in on_node for gpu in each.ids))
    if not own.ids or any(gpu.startswith(_PART_OF_GPU) for gpu in ids):
        return None
    return SeenGpus(ids, ids.index(own.ids[0]))


def given_gpus() -> GivenGpus:
    """What Ray gave to this actor."""
    context = ray.get_runtime_context()
    ids = [] if _VARIABLE_OF_OTHERS in os.environ else context.get_accelerator_ids()["GPU"]
    return GivenGpus(context.get_node_id(), tuple(sorted(ids)))


def see_gpus(ids: Sequence[str]) -> None:
    """Have this process see these GPUs, by their order.

    Raises:
        InvariantViolated: if CUDA is in use already: it reads the variable once.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise InvariantViolated("the GPUs that a rank sees are chosen before it uses one")
    os.environ[_VARIABLE] = ",".join(ids)
    os.environ.setdefault(_NO_MULTICAST, "1")
