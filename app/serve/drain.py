"""Empties a running server before it is stopped: `python -m app.serve.drain --seconds 30`.

New requests get 503 with `Retry-After` and `/health` says not ready, so that load balancers look
elsewhere; open ones end. What starts a server runs this when it is asked to stop it: a launcher at
SIGTERM, Kubernetes in a `preStop` hook.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

import ray
from ray import serve

# that the answers of the ingress replicas may take longer
_ANSWER_S = 10.0


async def drain(application: str, seconds: float) -> int:
    """Close every ingress replica to new requests and wait until none has an open one.

    Ray must be connected.

    Returns:
        Requests that are still open after `seconds`, of the replicas that answer.
    """
    ingress = serve.get_deployment_handle("Ingress", application)
    answers = await ingress.broadcast("drain", seconds).results_async(
        timeout_s=seconds + _ANSWER_S, return_exceptions=True
    )
    return sum(answer for answer in answers if isinstance(answer, int))


async def drain_all(applications: Sequence[str], seconds: float) -> int:
    """Drain several applications at once; see `drain`."""
    return sum(await asyncio.gather(*(drain(name, seconds) for name in applications)))


def main(args: Sequence[str]) -> int:
    """Run the command; returns its exit code: 0 when nothing is open any more."""
    parser = argparse.ArgumentParser(prog="python -m app.serve.drain", description=__doc__)
    parser.add_argument("--address", default="auto", help="of the Ray cluster")
    parser.add_argument("--seconds", type=float, default=30.0, help="that open requests have")
    options = parser.parse_args(args)
    ray.init(address=options.address, log_to_driver=False)
    num_open = asyncio.run(drain_all(list(serve.status().applications), options.seconds))
    sys.stdout.write(f"drained, {num_open} requests still open\n")
    return int(num_open > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
