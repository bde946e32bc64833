"""An application of scripted workers, for a Serve configuration file."""

from pathlib import Path
from typing import Any

from ray import serve

from app.serve.deployments import EngineDeployment, IngressDeployment
from engine.runtime.replica.gang import GangOptions
from tests.fakes import scripted_worker as scripted
from tests.fakes.scripted_app import make_app


def build(args: dict[str, Any]) -> serve.Application:
    """Args: worker: name of a factory of `scripted_worker`."""
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
    ).bind(
        scripted.engine_config(ranks=1),
        GangOptions(
            num_cpus_per_rank=0.1, worker_factory=f"tests.fakes.scripted_worker:{args['worker']}"
        ),
        Path,
    )
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        ray_actor_options={"num_cpus": 0.1}
    )
    application: serve.Application = ingress.bind(engine, make_app)
    return application
