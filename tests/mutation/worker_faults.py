"""Faults of the worker and of what hands it plans."""

from tests.mutation.batch_faults import BATCH_FAULTS
from tests.mutation.executor_faults import EXECUTOR_FAULTS
from tests.mutation.graph_faults import GRAPH_FAULTS
from tests.mutation.model.model_faults import MODEL_FAULTS
from tests.mutation.plan_faults import PLAN_FAULTS
from tests.mutation.pool_faults import POOL_FAULTS
from tests.mutation.ranks.node_faults import NODE_FAULTS
from tests.mutation.ranks.parallel_faults import PARALLEL_FAULTS
from tests.mutation.row_faults import ROW_FAULTS
from tests.mutation.sampling_faults import SAMPLING_FAULTS

WORKER_FAULTS = [
    *PARALLEL_FAULTS,
    *MODEL_FAULTS,
    *ROW_FAULTS,
    *POOL_FAULTS,
    *PLAN_FAULTS,
    *BATCH_FAULTS,
    *GRAPH_FAULTS,
    *SAMPLING_FAULTS,
    *EXECUTOR_FAULTS,
    *NODE_FAULTS,
]
