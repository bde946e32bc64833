"""Each fault put in on purpose is noticed by the test file that mirrors its module."""

import pytest

from tests.mutation.app.command_faults import COMMAND_FAULTS
from tests.mutation.app.generation_faults import GENERATION_FAULTS
from tests.mutation.app.http_faults import HTTP_FAULTS
from tests.mutation.app.neighbour_faults import NEIGHBOUR_FAULTS
from tests.mutation.app.page_faults import PAGE_FAULTS
from tests.mutation.app.reply_faults import REPLY_FAULTS
from tests.mutation.app.request_faults import REQUEST_FAULTS
from tests.mutation.app.routing_faults import ROUTING_FAULTS
from tests.mutation.app.telemetry_faults import TELEMETRY_FAULTS
from tests.mutation.app.text_faults import TEXT_FAULTS
from tests.mutation.mutant import Fault, every_sixth, in_place, is_noticed
from tests.mutation.runtime_faults import RUNTIME_FAULTS
from tests.mutation.worker_faults import WORKER_FAULTS

FAULTS: list[Fault] = [
    *RUNTIME_FAULTS,
    *WORKER_FAULTS,
    *COMMAND_FAULTS,
    *TEXT_FAULTS,
    *REQUEST_FAULTS,
    *REPLY_FAULTS,
    *NEIGHBOUR_FAULTS,
    *GENERATION_FAULTS,
    *HTTP_FAULTS,
    *PAGE_FAULTS,
    *ROUTING_FAULTS,
    *TELEMETRY_FAULTS,
]


@pytest.mark.parametrize("fault", every_sixth(FAULTS, lambda fault: fault.what))
def test_the_fault_is_noticed(fault: Fault) -> None:
    assert is_noticed(fault)


def test_every_fault_fits_its_function() -> None:
    for fault in FAULTS:
        with in_place(fault):
            pass


def test_a_fault_is_gone_afterwards() -> None:
    fault = FAULTS[0]
    right = fault.target().__code__
    with in_place(fault):
        assert fault.target().__code__ is not right
    assert fault.target().__code__ is right
