"""Faults of what replicas report and of how they are compared, scaled and drained."""

from app.http.proxy import ProxyMiddleware
from app.serve import scaling
from app.serve.counted_app import CountedApp
from app.serve.drainable_client import DrainableClient
from app.serve.handle import over_grpc
from app.serve.router import EngineRouter
from engine.core.memory.prefix_marks import PrefixMarks
from engine.runtime.routing import scoring
from engine.runtime.routing.leaving_replicas import LeavingReplicas
from engine.runtime.routing.load_meter import LoadMeter
from engine.runtime.routing.routing_table import RoutingTable
from tests.mutation.mutant import Fault

ROUTING_FAULTS = [
    Fault(
        what="a block that was evicted keeps its mark",
        function=PrefixMarks.discard,
        old="del self._marks[mark]",
        new="pass",
        noticed_by="test_blocks_at_the_right_depths_leave_marks_until_they_are_evicted",
    ),
    Fault(
        what="a summary grows with the pool",
        function=PrefixMarks.report,
        old="[-MAX_MARKS * MARK_BYTES :]",
        new="",
        noticed_by="test_a_summary_is_bounded_and_has_what_was_found_last",
    ),
    Fault(
        what="the last changes before a pause are never reported",
        function=PrefixMarks.report,
        old="is_idle or ",
        new="",
        noticed_by="test_changes_are_gathered_for_a_while_unless_the_engine_is_idle",
    ),
    Fault(
        what="a prompt of one tenant finds the marks of another",
        function=scoring.marks_of_prompt,
        old="PrefixChain.of_tenant(salt, block_size)",
        new='PrefixChain.of_tenant(b"", block_size)',
        noticed_by="test_tenants_have_no_marks_in_common",
    ),
    Fault(
        what="a caller that is frozen stops the replica",
        function=over_grpc,
        old="_by_reference=False",
        new="_by_reference=True",
        noticed_by="test_a_replica_gets_what_is_meant_for_it",
    ),
    Fault(
        what="cached tokens count as work",
        function=scoring.rank,
        old="len(request.prompt) - num_cached_tokens(marks, known)",
        new="len(request.prompt)",
        noticed_by="test_a_cached_prefix_is_worth_the_queue_that_it_saves",
    ),
    Fault(
        what="a full pool is as good as an empty one",
        function=scoring.rank,
        old="not score.has_room,",
        new="False,",
        noticed_by="test_a_full_pool_is_avoided_where_another_has_room",
    ),
    Fault(
        what="a session waits at home however long the queue",
        function=scoring.rank,
        old="score.tag != home or late_s > SESSION_PATIENCE_S",
        new="score.tag != home",
        noticed_by="test_a_session_stays_at_home_unless_it_would_wait_there",
    ),
    Fault(
        what="what was sent since the last report is forgotten",
        function=RoutingTable._note,
        old="seen.known.sent_tokens + num_tokens",
        new="seen.known.sent_tokens",
        noticed_by="test_what_was_sent_is_remembered_until_the_next_report",
    ),
    Fault(
        what="a replica that is stuck is believed for ever",
        function=RoutingTable.choose,
        old="now_s - seen.seen_s < STALE_S",
        new="True",
        noticed_by="test_an_old_report_is_not_believed",
    ),
    Fault(
        what="a replica whose gang is being started again gets requests",
        function=RoutingTable.choose,
        old="self._is_unready(tag)",
        new="False",
        noticed_by="test_a_replica_that_is_being_started_again_comes_last",
    ),
    Fault(
        what="a request goes back to the replica that has just lost it",
        function=EngineRouter.choose_replicas,
        old="avoided=avoided",
        new='avoided=""',
        noticed_by="test_a_replica_that_is_avoided_comes_last_however_loaded",
    ),
    Fault(
        what="requests of a lost gang wait for ever",
        function=LoadMeter.restart,
        old="self._unanswered.clear()",
        new="pass",
        noticed_by="test_requests_and_cache_of_a_lost_scheduler_are_forgotten_and_its_pace_is_not",
    ),
    Fault(
        what="a client's session steers Serve, and is no conversation",
        function=ProxyMiddleware.__call__,
        old="(_OWN_SESSION_HEADER.encode(), session.encode())",
        new="(SESSION_HEADER.encode(), session.encode())",
        noticed_by="test_a_session_goes_on_under_a_name_that_serve_does_not_know",
    ),
    Fault(
        what="a request waits after its first output",
        function=LoadMeter._observe_prompts,
        old="self._unanswered.pop(request_id, 0)",
        new="self._unanswered.get(request_id, 0)",
        noticed_by="test_prompts_wait_until_their_first_output",
    ),
    Fault(
        what="steps without waiting prompts slow the pace down",
        function=LoadMeter.observe,
        old="if self._unanswered:",
        new="if True:",
        noticed_by="test_only_steps_while_prompts_wait_count_for_the_pace",
    ),
    Fault(
        what="a new request goes to a replica that is about to stop",
        function=EngineRouter.choose_replicas,
        old="if not self._leaving.has(tag)",
        new="if True",
        noticed_by="test_a_replica_off_the_list_gets_pinned_calls_only",
    ),
    Fault(
        what="clients of a replica that is about to stop lose their leases",
        function=EngineRouter.update_replicas,
        old="[*replicas, *leaving]",
        new="[*replicas]",
        noticed_by="test_a_replica_off_the_list_gets_pinned_calls_only",
    ),
    Fault(
        what="a drain has no end",
        function=LeavingReplicas.is_reachable,
        old="now_s - leaving.since_s < self._drain_s",
        new="True",
        noticed_by="test_a_replica_off_the_list_is_reachable_while_it_drains",
    ),
    Fault(
        what="each new list begins the drain anew",
        function=LeavingReplicas.update,
        old="self._leaving.get(tag) or _Leaving(replica, now_s, now_s)",
        new="_Leaving(replica, now_s, now_s)",
        noticed_by="test_a_replica_off_the_list_is_reachable_while_it_drains",
    ),
    Fault(
        what="a server that is about to stop takes requests",
        function=DrainableClient.submit,
        old="self._check()",
        new="pass",
        noticed_by="test_a_draining_server_refuses_what_is_new_and_ends_what_is_open",
    ),
    Fault(
        what="a request that fails is open for ever",
        function=CountedApp.__call__,
        old="self.num_open -= 1",
        new="pass",
        noticed_by="test_a_request_that_fails_is_over",
    ),
    Fault(
        what="replicas are given up while requests wait",
        function=scaling.decide,
        old="max(num_needed, math.ceil(num_running * strain))",
        new="num_needed",
        noticed_by="test_no_replica_is_given_up_while_requests_wait_near_a_limit",
    ),
    Fault(
        what="a replica is given up that is needed again at once",
        function=scaling.decide,
        old="demand / targets.shrunk_usage",
        new="demand",
        noticed_by="test_replicas_follow_what_is_in_use",
    ),
    Fault(
        what="a long queue brings any number of replicas at once",
        function=scaling.decide,
        old="min(num_running, math.ceil(num_running * (strain - 1)))",
        new="math.ceil(num_running * (strain - 1))",
        noticed_by="test_replicas_are_added_when_a_limit_is_passed",
    ),
    Fault(
        what="the last replica goes while a request is open",
        function=scaling.decide,
        old="not any(report.num_open for report in reports)",
        new="True",
        noticed_by="test_the_last_replica_may_go_when_nothing_is_open",
    ),
]
