"""Faults of the processes of an engine replica and of the client that talks to it."""

from tests.mutation.client_faults import CLIENT_FAULTS
from tests.mutation.replica.flow_faults import FLOW_FAULTS
from tests.mutation.replica.gang_faults import GANG_FAULTS
from tests.mutation.replica.output_faults import OUTPUT_FAULTS
from tests.mutation.replica.pace_faults import PACE_FAULTS
from tests.mutation.replica_faults import REPLICA_FAULTS
from tests.mutation.supervisor_faults import SUPERVISOR_FAULTS

RUNTIME_FAULTS = [
    *SUPERVISOR_FAULTS,
    *GANG_FAULTS,
    *REPLICA_FAULTS,
    *CLIENT_FAULTS,
    *FLOW_FAULTS,
    *OUTPUT_FAULTS,
    *PACE_FAULTS,
]
