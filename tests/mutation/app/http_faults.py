"""Faults of what HTTP requests pass first: request ids, client headers, keys."""

from app.generation.allowance import AnswerClock, allowance_of
from app.generation.watchdog import Watchdog
from app.http.bodies.request_body import BodyReader
from app.http.flow.arrivals import Arrivals
from app.http.flow.direct_writer import DirectApp, QueueWriter
from app.http.flow.guarded_protocol import GuardedProtocol
from app.http.middleware import RequestMiddleware
from app.http.operator.access import OperatorAccess, is_local
from app.http.proxy import (
    ProxyMiddleware,
    _harmless,
    _has_rest,
    _is_private,
    _is_taken,
    identify,
)
from app.telemetry.recorded_app import RecordedApp
from tests.mutation.mutant import Fault

HTTP_FAULTS = [
    Fault(
        what="the queue to a proxy comes before the connection",
        function=DirectApp.__call__,
        old=" and direct_writer() is None",
        new="",
        noticed_by="test_a_connection_in_this_process_comes_before_the_queue",
    ),
    Fault(
        what="a part that waits is taken for sent",
        function=QueueWriter.write,
        old="sending.close()",
        new="return",
        noticed_by="test_nobody_waits_in_a_queue_that_has_no_room",
    ),
    Fault(
        what="a body may take for ever to come",
        function=BodyReader.read,
        old="asyncio.timeout(upload_s)",
        new="asyncio.timeout(None)",
        noticed_by="test_a_body_that_does_not_come_is_408",
    ),
    Fault(
        what="many messages hold up the event loop while they are checked",
        function=BodyReader.read,
        old=' + _SIZE_PER_OBJECT * body.count(b"{")',
        new="",
        noticed_by="test_many_objects_are_checked_beside_the_event_loop",
    ),
    Fault(
        what="hundreds of requests begin in one turn of the event loop",
        function=Arrivals.begin,
        old="self._num_begun < _NUM_AT_ONCE",
        new="True",
        noticed_by="test_of_many_a_few_begin_in_a_turn_in_their_order",
    ),
    Fault(
        what="a probe waits behind a burst of requests",
        function=ProxyMiddleware.__call__,
        old='if scope.get("method") == "POST":',
        new="if True:",
        noticed_by="test_of_many_requests_at_once_a_few_begin_in_each_turn",
    ),
    Fault(
        what="a request that has left stops those that wait to begin behind it",
        function=Arrivals._next_turn,
        old="if not turn.done():",
        new="if True:",
        noticed_by="test_one_that_leaves_while_it_waits_takes_no_place",
    ),
    Fault(
        what="a client that reads nothing is waited for",
        function=RequestMiddleware.__call__,
        old="loop.time() + self._write_s",
        new="loop.time() + 3600",
        noticed_by="test_a_client_that_reads_nothing_is_cut_off",
    ),
    Fault(
        what="a client may ask for more time than the server allows",
        function=allowance_of,
        old="min(deadlines.whole_s, request.timeout_s or math.inf)",
        new="request.timeout_s or deadlines.whole_s",
        noticed_by="test_a_request_may_only_ask_for_less",
    ),
    Fault(
        what="a slow reader is taken for a slow engine",
        function=AnswerClock.limited,
        old="next_s = self._loop.time() + gap_s",
        new="next_s += gap_s",
        noticed_by="test_what_the_reader_takes_is_not_the_time_of_the_engine",
    ),
    Fault(
        what="what somebody else has cancelled is a timeout",
        function=Watchdog.wait,
        old="if task.uncancel() > num_cancelled:",
        new="if False:",
        noticed_by="test_what_somebody_else_cancels_is_cancelled",
    ),
    Fault(
        what="a connection that sends nothing stays",
        function=GuardedProtocol._is_too_late,
        old="self.transport.close()",
        new="pass",
        noticed_by="test_a_head_that_comes_too_slowly_ends_the_connection",
    ),
    # proxy
    Fault(
        what="the rest of a body is waited for behind its answer",
        function=_has_rest,
        old='"more_body", False)',
        new='"less_body", False)',
        noticed_by="test_an_answer_before_the_end_of_a_body_closes_the_connection",
    ),
    Fault(
        what="everybody sees the names of applications",
        function=_is_private,
        old=" and not is_local(scope)",
        new=" and False",
        noticed_by="test_names_of_applications_are_for_this_machine",
    ),
    Fault(
        what="a path has two spellings",
        function=_is_private,
        old=".lower()",
        new="",
        noticed_by="test_names_of_applications_are_for_this_machine",
    ),
    Fault(
        what="the system takes megabytes of what nobody reads",
        function=ProxyMiddleware.__call__,
        old="bound(send)",
        new="pass",
        noticed_by="test_the_system_takes_little_of_what_nobody_reads_and_not_for_long",
    ),
    Fault(
        what="a client's header reaches Serve",
        function=_is_taken,
        old="name in _SERVE_HEADERS or ",
        new="",
        noticed_by="test_headers_meant_for_serve_are_dropped",
    ),
    Fault(
        what="a header for Serve passes in another spelling",
        function=_is_taken,
        old='.replace(b"_", b"-")',
        new="",
        noticed_by="test_headers_meant_for_serve_are_dropped",
    ),
    Fault(
        what="Serve's request id stays beside ours",
        function=ProxyMiddleware.__call__,
        old="headers[ID_HEADER] = request_id",
        new="pass",
        noticed_by="test_an_answer_has_one_id_whatever_serve_appends",
    ),
    Fault(
        what="an unfit request id is kept",
        function=_harmless,
        old="pattern.fullmatch(given[0])",
        new="True",
        noticed_by="test_an_answer_has_one_id_whatever_serve_appends",
    ),
    Fault(
        what="a request id that was made up counts as the client's",
        function=identify,
        old='if "request_id" not in state:',
        new="if True:",
        noticed_by="test_the_body_s_id_counts_behind_the_proxy_too",
    ),
    # middleware
    Fault(
        what="fields without effect are not noted",
        function=BodyReader.read,
        old='scope["state"]["ignored"] += ignored',
        new="pass",
        noticed_by="test_what_has_no_effect_is_noted_in_the_scope",
    ),
    Fault(
        what="probes need a key where the application has a prefix",
        function=RequestMiddleware._check,
        old='scope["path"].removeprefix(prefix)',
        new='scope["path"]',
        noticed_by="test_probes_and_encoded_names_work_behind_a_prefix",
    ),
    # operators
    Fault(
        what="keys of tenants do not close what is of all",
        function=OperatorAccess.__init__,
        old="sees_clients and not tenant_sha256",
        new="sees_clients",
        noticed_by="test_keys_of_tenants_never_open_what_is_of_all",
    ),
    Fault(
        what="who comes through something in between counts as of this machine",
        function=is_local,
        old="any(name in headers for name in _FORWARDED)",
        new="False",
        noticed_by="test_what_came_through_something_in_between_is_not_of_this_machine",
    ),
    Fault(
        what="behind HAProxy everybody is of this machine",
        function=OperatorAccess.check,
        old="self._is_open_here and is_local(scope)",
        new="is_local(scope)",
        noticed_by="test_where_clients_cannot_be_seen_nobody_is_of_this_machine",
    ),
    Fault(
        what="any key is one of an operator",
        function=OperatorAccess.check,
        old="if not key_digest(scope, self._digests):",
        new="if False:",
        noticed_by="test_keys_of_operators_open_it_from_anywhere_and_nothing_else",
    ),
    # recorded_app
    Fault(
        what="a client that does not read counts as one that has left",
        function=RecordedApp.__call__,
        old="if now_s - begin_s >= self._unread_s:",
        new="if False:",
        noticed_by="test_a_client_that_does_not_read_is_told_from_one_that_leaves",
    ),
    Fault(
        what="whoever was slow once and leaves much later counts as one that does not read",
        function=RecordedApp.__call__,
        old=" and record.ended_s - waited_until_s < self._unread_s",
        new=" and waited_until_s > 0",
        noticed_by="test_a_client_that_does_not_read_is_told_from_one_that_leaves",
    ),
]
