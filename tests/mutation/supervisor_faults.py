"""Faults of the supervisor of an engine replica and of the sessions that it keeps."""

from engine.runtime.replica.sessions import Sessions
from engine.runtime.replica.supervisor import Supervisor
from tests.mutation.mutant import Fault

SUPERVISOR_FAULTS = [
    Fault(
        what="the requests of a client that has vanished run on",
        function=Supervisor._forget,
        old="self.abort(request_ids)",
        new="pass",
        noticed_by="test_a_client_that_vanishes_has_its_requests_aborted",
    ),
    Fault(
        what="the ids of a client that has vanished stay taken",
        function=Sessions._drop,
        old="del self._by_request[request_id]",
        new="pass",
        noticed_by="test_a_client_that_is_lost_is_forgotten_with_its_requests",
    ),
    Fault(
        what="a client that has vanished is never forgotten",
        function=Sessions._drop,
        old="self._by_client.pop(client)",
        new="self._by_client[client]",
        noticed_by="test_a_client_that_is_lost_is_forgotten_with_its_requests",
    ),
    Fault(
        what="the lease of another client is renewed",
        function=Sessions.renew,
        old="self._by_client[client].renew(received_bytes)",
        new="next(iter(self._by_client.values())).renew(received_bytes)",
        noticed_by="test_a_renewal_is_of_one_client",
    ),
    Fault(
        what="an id that is open is accepted again",
        function=Supervisor._check,
        old="request.request_id in self._sessions.by_request",
        new="False",
        noticed_by="test_an_id_that_is_open_is_refused",
    ),
    Fault(
        what="the id of a request is not free after its end",
        function=Sessions.end,
        old="del self._by_request[request_id]",
        new="pass",
        noticed_by="test_a_request_is_open_until_its_last_choice_has_ended",
    ),
    Fault(
        what="requests in the batch count as waiting",
        function=Supervisor.num_waiting,
        old="self.num_open - self._stats.num_running",
        new="self.num_open",
        noticed_by="test_a_full_queue_is_refused_with_the_time_until_what_waits_has_begun",
    ),
    Fault(
        what="the last rows of a request are given to no client",
        function=Supervisor.deliver,
        old="""    parts = split_by_client(output, message, self._sessions.by_request)
    num_ended = sum(self._sessions.end(*choice) for choice in ended_choices(output))
""",
        new="""    num_ended = sum(self._sessions.end(*choice) for choice in ended_choices(output))
    parts = split_by_client(output, message, self._sessions.by_request)
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
        old="if not self.num_open and ",
        new="if ",
        noticed_by="test_every_request_leaves_the_deadline_of_a_step_as_it_is",
        aspect="health",
    ),
    Fault(
        what="requests are taken while no gang serves",
        function=Supervisor._check_serving,
        old="if state is State.STARTING and not is_ready_for_own:",
        new="if False:",
        noticed_by="test_requests_are_refused_until_another_gang_is_ready",
        aspect="health",
    ),
    Fault(
        what="the health check fails while a gang is being started",
        function=Supervisor.check_health,
        old="(State.LOST, State.CLOSED)",
        new="(State.LOST, State.CLOSED, State.STARTING)",
        noticed_by="test_requests_are_refused_until_another_gang_is_ready",
        aspect="health",
    ),
    Fault(
        what="the health check passes when no gang can be started",
        function=Supervisor.check_health,
        old="(State.LOST, State.CLOSED)",
        new="(State.CLOSED,)",
        noticed_by="test_a_replica_without_a_gang_has_serve_replace_it",
        aspect="health",
    ),
    Fault(
        what="open requests wait for ever when the gang has died",
        function=Supervisor.end_open,
        old="session.put(OUTPUTS.encode(ended), ended.request_ids)",
        new="pass",
        noticed_by="test_the_death_of_the_scheduler_crashes_every_open_choice",
        aspect="health",
    ),
    Fault(
        what="requests stay open when the gang has died",
        function=Sessions.end_all,
        old="session.open.clear()",
        new="pass",
        noticed_by="test_all_that_is_open_ends_at_once",
    ),
    Fault(
        what="the pins of a lost gang are forgotten",
        function=Supervisor.end_open,
        old="self._pins.lose()",
        new="self._pins.report(())",
        noticed_by="test_pins_are_listed_as_cold_until_they_are_pinned_again",
        aspect="health",
    ),
    Fault(
        what="a pin that is released while no gang runs comes back",
        function=Supervisor.release_prefix,
        old="self._pins.release(salt, name)",
        new="pass",
        noticed_by="test_pins_are_listed_as_cold_until_they_are_pinned_again",
        aspect="health",
    ),
    Fault(
        what="the last output of a scheduler is taken for any other",
        function=Supervisor.deliver,
        old="if output.failure and self._keeper.gang is not None:",
        new="if False:",
        noticed_by="test_what_the_last_output_does_not_name_is_lost",
        aspect="health",
    ),
    Fault(
        what="the counts of a lost gang are still reported",
        function=Supervisor.end_open,
        old="self._stats = idle_stats(self._capacity)",
        new="pass",
        noticed_by="test_the_counts_of_a_lost_gang_are_gone",
        aspect="health",
    ),
    Fault(
        what="streams go on after the replica was stopped",
        function=Supervisor.close,
        old='self._sessions.close("the engine replica has been stopped")',
        new="pass",
        noticed_by="test_closing_ends_the_processes_and_the_streams",
        aspect="health",
    ),
]
