"""Faults of the processes of an engine replica and of the client that talks to it."""

from engine.runtime.replica.open_choices import OpenChoices
from tests.mutation.mutant import Fault

RUNTIME_FAULTS = [
    Fault(
        what="a request stays open after its last choice",
        function=OpenChoices.close,
        old="del self._choices[request_id]",
        new="pass",
        noticed_by="test_a_request_ends_with_its_last_choice",
    ),
]
