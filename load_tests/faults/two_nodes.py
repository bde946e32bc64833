"""Serves a file on a cluster of two Ray nodes of this machine: `python -m ... two_nodes FILE`.

The second node has room for one engine replica, as the first has. Whenever its raylet has died it
is started again, as whatever runs nodes would do.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from load_tests.bench.startup.server_process import serve_command

_PERIOD_S = 0.2
_STORE_BYTES = 256 << 20
# Ray's resource of which each node has one, for one engine replica
ENGINE_SLOT = "engine_slot"


def _main(config: Path) -> int:
    node: dict[str, Any] = {
        "num_cpus": 2,
        "resources": {ENGINE_SLOT: 1},
        "object_store_memory": _STORE_BYTES,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        other = cluster.add_node(**node)
        with subprocess.Popen(serve_command(config, cluster.address)) as serving:
            while serving.poll() is None:
                time.sleep(_PERIOD_S)
                if any(kind == "raylet" for kind, _ in other.dead_processes()):
                    cluster.remove_node(other, allow_graceful=False)
                    other = cluster.add_node(**node)
            return serving.returncode
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
