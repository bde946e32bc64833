"""Faults of the supervisor of an engine replica."""

from engine.runtime.replica.supervisor import Supervisor
from tests.mutation.mutant import Fault

SUPERVISOR_FAULTS = [
    Fault(
        what="the requests of a client that has vanished run on",
        function=Supervisor._drop,
        old="self.abort(request_ids)",
        new="pass",
        noticed_by="test_a_client_that_vanishes_has_its_requests_aborted",
    ),
    Fault(
        what="the ids of a client that has vanished stay taken",
        function=Supervisor._drop,
        old="del self._session_of[request_id]",
        new="pass",
        noticed_by="test_a_client_that_vanishes_has_its_requests_aborted",
    ),
    Fault(
        what="a client that has vanished is never forgotten",
        function=Supervisor._drop,
        old="self._sessions.pop(client)",
        new="self._sessions[client]",
        noticed_by="test_a_client_that_vanishes_has_its_requests_aborted",
    ),
    Fault(
        what="the lease of another client is renewed",
        function=Supervisor.renew,
        old="self._sessions[client].renew(received_bytes)",
        new="next(iter(self._sessions.values())).renew(received_bytes)",
        noticed_by="test_a_client_that_vanishes_has_its_requests_aborted",
    ),
    Fault(
        what="an id that is open is accepted again",
        function=Supervisor._check,
        old="request.request_id in self._session_of",
        new="request.request_id in self._sessions",
        noticed_by="test_an_id_that_is_open_is_refused",
    ),
    Fault(
        what="the id of a request is not free after its end",
        function=Supervisor._close,
        old="del self._session_of[request_id]",
        new="pass",
        noticed_by="test_a_request_is_open_until_its_last_choice_has_ended",
    ),
    Fault(
        what="requests in the batch count as waiting",
        function=Supervisor.num_waiting,
        old="self.num_open - self._stats.num_running",
        new="self.num_open",
        noticed_by="test_a_full_queue_is_refused_with_the_time_that_recent_requests_took",
    ),
    Fault(
        what="the last rows of a request are given to no client",
        function=Supervisor._deliver,
        old="""    parts = split_by_client(output, data, self._session_of)
    num_ended = sum(self._close(*choice) for choice in ended_choices(output))
""",
        new="""    num_ended = sum(self._close(*choice) for choice in ended_choices(output))
    parts = split_by_client(output, data, self._session_of)
""",
        noticed_by="test_each_client_gets_its_own_rows",
    ),
    Fault(
        what="an abort of one choice ends the whole request",
        function=Supervisor.abort,
        old="[choice] * len(ids)",
        new="[ALL_CHOICES] * len(ids)",
        noticed_by="test_aborts_and_releases_go_to_the_scheduler",
    ),
    Fault(
        what="every request puts the deadline of a step off",
        function=Supervisor._accept,
        old="if not self._session_of:",
        new="if True:",
        noticed_by="test_a_hang_is_a_silent_scheduler_while_requests_are_open",
        aspect="health",
    ),
    Fault(
        what="the first request after a pause counts as a hang",
        function=Supervisor._accept,
        old="self._progress_s = self._loop.time()",
        new="pass",
        noticed_by="test_a_hang_is_a_silent_scheduler_while_requests_are_open",
        aspect="health",
    ),
    Fault(
        what="a dead process is not reported as one",
        function=Supervisor.check_health,
        old="    self._lose_gang()\n        raise\n",
        new="    self._lose_gang()\n",
        noticed_by="test_the_health_check_ends_a_gang_with_a_dead_process",
        aspect="health",
    ),
    Fault(
        what="open requests wait for ever when the gang has died",
        function=Supervisor._lose_gang,
        old="session.put(OUTPUTS.encode(lost), lost.request_ids)",
        new="pass",
        noticed_by="test_the_end_of_the_scheduler_fails_every_open_choice",
        aspect="health",
    ),
    Fault(
        what="streams stay open when the gang has died",
        function=Supervisor._lose_gang,
        old="session.open.clear()",
        new="pass",
        noticed_by="test_the_end_of_the_scheduler_fails_every_open_choice",
        aspect="health",
    ),
    Fault(
        what="streams go on after the replica was stopped",
        function=Supervisor.close,
        old='session.close("the engine replica has been stopped")',
        new="pass",
        noticed_by="test_closing_ends_the_processes_and_the_streams",
        aspect="health",
    ),
]
