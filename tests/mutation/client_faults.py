"""Faults of the ingress's side of the engine, and of the messages between the processes."""

from engine.runtime.client.abort_calls import AbortCalls
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.client.delivery import Delivery
from engine.runtime.client.deltas import _gather
from engine.runtime.client.journal import Journal
from engine.runtime.client.lease import Lease
from engine.runtime.client.open_requests import OpenRequests
from engine.runtime.client.prefix_list import list_prefixes, merge_prefixes
from engine.runtime.client.retries import Retries
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.client.unread_output import UnreadOutput
from engine.runtime.loop import _add, _carry_out, _commands
from engine.runtime.messages import error_of, refusal_of
from engine.runtime.outputs import _select, _select_events, split_by_client
from engine.runtime.replica.admission import Admission
from engine.runtime.scheduler_actor import _exit, _run
from tests.mutation.mutant import Fault

REQUEST_FAULTS = [
    Fault(
        what="a submission that is cancelled before its verdict runs on",
        function=OpenRequests.offer,
        old="self._spawn(self._withdraw(call, request_id))",
        new="pass",
        noticed_by="test_a_submission_cancelled_before_its_verdict_is_aborted",
        aspect="aborts",
    ),
    Fault(
        what="each of many that leave costs a call",
        function=AbortCalls.end,
        old="if choice != ALL_CHOICES:",
        new="if True:",
        noticed_by="test_many_that_leave_at_once_cost_two_calls",
    ),
    Fault(
        what="what a slow reader has not taken is kept as it came",
        function=UnreadOutput.put,
        old="len(self._items) < MAX_LOOSE",
        new="True",
        noticed_by="test_what_a_slow_reader_finds_takes_the_bytes_of_its_numbers",
    ),
    Fault(
        what="tokens get in front of those that came before them",
        function=UnreadOutput.put,
        old="self._growing.pop(delta.choice, None)",
        new="pass",
        noticed_by="test_each_choice_has_its_tokens_in_order_and_its_end_behind_them",
    ),
    Fault(
        what="a request is aborted on another replica",
        function=OpenRequests._send_abort,
        old="self._aborts.end(stream.replica,",
        new='self._aborts.end("a",',
        noticed_by="test_a_request_is_aborted_on_the_replica_that_has_it",
        aspect="aborts",
    ),
    Fault(
        what="an abort of one choice ends all",
        function=OpenRequests._send_abort,
        old="request_id, choice)",
        new="request_id, ALL_CHOICES)",
        noticed_by="test_a_single_choice_is_aborted",
        aspect="aborts",
    ),
    Fault(
        what="a request whose verdict was lost runs on",
        function=OpenRequests.deliver,
        old="self._abort_unknown(replica, request_id)",
        new="pass",
        noticed_by="test_a_request_whose_verdict_was_lost_is_aborted_at_its_first_output",
        aspect="aborts",
    ),
    Fault(
        what="an abort is sent for every output that comes after it",
        function=OpenRequests._abort_unknown,
        old="self._streams[request_id] = stream",
        new="pass",
        noticed_by="test_a_request_whose_verdict_was_lost_is_aborted_at_its_first_output",
        aspect="aborts",
    ),
    Fault(
        what="a request ends with its first choice",
        function=OpenRequests.deliver,
        old="if found.has_ended and",
        new="if",
        noticed_by="test_a_choice_that_has_ended_does_not_end_again",
    ),
    Fault(
        what="output of the engine that was lost is taken for that of its successor",
        function=OpenRequests._lose,
        old="stream.submission_id = next(self._request_ids)",
        new="pass",
        noticed_by="test_what_a_lost_engine_still_sends_is_dropped_and_aborted",
    ),
    Fault(
        what="a lost engine that was only out of reach runs on",
        function=OpenRequests.lose_all,
        old="self._spawn(self._abort_lost(replica, ids))",
        new="pass",
        noticed_by="test_what_a_lost_engine_still_sends_is_dropped_and_aborted",
    ),
    Fault(
        what="the replica that has just failed is asked again though there is another",
        function=OpenRequests.place,
        old="avoid=lost",
        new="avoid=None",
        noticed_by="test_a_request_goes_on_with_another_engine_without_gap_or_repeat",
    ),
    Fault(
        what="a request that waits for an engine cannot be aborted",
        function=OpenRequests.abort,
        old="self._resuming[stream].cancel()",
        new="pass",
        noticed_by="test_an_abort_ends_a_request_that_no_engine_has",
    ),
    Fault(
        what="a choice that was aborted while its request was placed runs on",
        function=OpenRequests.place,
        old="self._spawn(self._send_abort(stream, choice))",
        new="pass",
        noticed_by="test_a_choice_aborted_between_submission_and_verdict_is_aborted",
    ),
    Fault(
        what="a crash counts only if the last choice was in the batch",
        function=OpenRequests.deliver,
        old="max(delta.finish_reason, lost.get(found, FinishReason.LOST))",
        new="delta.finish_reason",
        noticed_by="test_one_crash_of_several_choices_is_one",
    ),
    Fault(
        what="a death while a request waited counts as a crash of it",
        function=OpenRequests.deliver,
        old="max(delta.finish_reason, lost.get(found, FinishReason.LOST))",
        new="FinishReason.CRASHED",
        noticed_by="test_a_request_of_which_gangs_die_runs_by_itself_and_is_then_given_up",
    ),
    Fault(
        what="a verdict for what was lost before it counts",
        function=OpenRequests.offer,
        old="stream.is_placed = request_id in self._streams",
        new="stream.is_placed = True",
        noticed_by="test_a_loss_before_the_verdict_makes_it_worth_nothing",
    ),
    Fault(
        what="tokens that broke off with a stream before the verdict are missing",
        function=OpenRequests.lose_all,
        old="self._last_broken[replica] = self._num_broken",
        new="pass",
        noticed_by="test_a_stream_that_breaks_before_the_verdict_may_have_lost_tokens",
    ),
    Fault(
        what="a client is to blame for what is refused when it is to go on",
        function=RemoteTokenStream.is_resumed,
        old="self.retries.num_lost > 0",
        new="self.retries.num_lost > 1",
        noticed_by="test_a_request_goes_on_as_one_that_was_accepted",
    ),
]

RESUME_FAULTS = [
    Fault(
        what="the progress of a request is dropped",
        function=Journal.note,
        old="self._outputs[choice] += delta.tokens",
        new="pass",
        noticed_by="test_tokens_of_open_choices_are_kept_and_of_others_their_end",
    ),
    Fault(
        what="the end of a choice is forgotten",
        function=Journal.end,
        old="self._finish_reasons[choice] = reason",
        new="pass",
        noticed_by="test_tokens_of_open_choices_are_kept_and_of_others_their_end",
    ),
    Fault(
        what="scores of the prompt are reported twice",
        function=Journal.note,
        old="self._num_prompt_scored += len(delta.tokens)",
        new="pass",
        noticed_by="test_scores_of_the_prompt_are_counted",
    ),
    Fault(
        what="alternatives of beams go to other rows",
        function=Journal._note_step,
        old="[0] * (num_rows - len(search.top_counts))",
        new="[]",
        noticed_by="test_steps_of_a_search_are_kept_as_they_were_reported",
    ),
    Fault(
        what="a request that may have ended engines is not on probation",
        function=Retries.solo_tokens,
        old="self._num_crashes < CRASHES_TO_PROBATION",
        new="True",
        noticed_by="test_the_second_crash_is_followed_by_probation_and_a_further_one_by_a_longer_one",
    ),
    Fault(
        what="a request that has passed one probation passes every other in as short a time",
        function=Retries.solo_tokens,
        old="self._num_crashes == CRASHES_TO_PROBATION",
        new="True",
        noticed_by="test_the_second_crash_is_followed_by_probation_and_a_further_one_by_a_longer_one",
    ),
    Fault(
        what="who shared the batch with a request that ends gangs is given up as well",
        function=OpenRequests.deliver,
        old="max(delta.finish_reason, lost.get(found, FinishReason.LOST))",
        new="FinishReason.CRASHED_SOLO",
        noticed_by="test_who_shared_the_batch_with_it_is_not_given_up",
    ),
    Fault(
        what="a request ends one engine after the other",
        function=Retries.engine_lost,
        old="reason is FinishReason.CRASHED_SOLO",
        new="False",
        noticed_by="test_who_ends_an_engine_with_nothing_beside_it_is_given_up_by_name",
    ),
    Fault(
        what="what waits behind requests that end gangs is given up with them",
        function=Retries.engine_lost,
        old="self.num_lost - self._num_waits",
        new="self.num_lost",
        noticed_by="test_losses_before_which_it_only_waited_count_little_but_have_an_end",
    ),
    Fault(
        what="a search whose progress nobody knows passes its probation",
        function=Journal.resumed,
        old="sampling.beam_width and not sampling.report_beams",
        new="False",
        noticed_by="test_a_search_that_reports_nothing_is_on_probation_to_its_end",
    ),
    Fault(
        what="a request loses engines without end",
        function=Retries.engine_lost,
        old="num_counted + self._num_waits / WAITS_PER_RESUME > self._config.max_resumes",
        new="False",
        noticed_by="test_engines_are_lost_at_most_so_often",
    ),
    Fault(
        what="a request without an engine is tried for ever",
        function=Retries.delay_s,
        old="if left_s <= 0:",
        new="if False:",
        noticed_by="test_delays_grow_up_to_a_limit_and_end_in_time",
    ),
    Fault(
        what="the time of a lost request has begun with its arrival",
        function=Retries.engine_lost,
        old="self._deadline_s = now_s + self._config.resume_timeout_s",
        new="pass",
        noticed_by="test_each_loss_begins_a_new_time",
    ),
    Fault(
        what="all requests of a lost engine come back together",
        function=Retries.delay_s,
        old="random.uniform(0.5, 1.0)",
        new="1.0",
        noticed_by="test_requests_that_were_lost_together_come_back_one_after_the_other",
    ),
    Fault(
        what="what another engine has begun is refused by a full queue",
        function=Admission.check,
        old="if request.progress is not None:",
        new="if False:",
        noticed_by="test_the_queue_is_never_too_full_for_what_another_engine_has_begun",
    ),
    Fault(
        what="a request that goes on is the youngest",
        function=_add,
        old="clock() - age_s",
        new="clock()",
        noticed_by="test_a_request_that_goes_on_keeps_its_age",
    ),
    Fault(
        what="alternatives of beams are those of other clients",
        function=_select,
        old="output.beam_top_counts, output.beam_top_tokens, output.beam_top_logprobs, beams",
        new="output.beam_top_counts, output.beam_top_tokens, output.beam_top_logprobs, rows",
        noticed_by="test_alternatives_of_beams_go_with_their_rows",
    ),
]

ONLY_CLIENT_FAULTS = [
    Fault(
        what="the death of a replica fails the requests of all",
        function=RemoteEngineClient._follow,
        old="requests.placed_on(replica), error)",
        new="list(requests._streams.values()), error)",
        noticed_by="test_the_death_of_a_replica_moves_its_requests_and_no_other",
    ),
    Fault(
        what="a request that the replica has forgotten waits for ever",
        function=RemoteEngineClient._follow,
        old="requests.lose_all(replica, known, lost)",
        new="return",
        noticed_by="test_a_request_that_its_replica_forgets_is_submitted_again",
    ),
    Fault(
        what="a stream that was idle is not opened again",
        function=RemoteEngineClient._follow,
        old="self._followed.discard(replica)",
        new="pass",
        noticed_by="test_an_idle_stream_is_opened_again_for_the_next_request",
    ),
    Fault(
        what="leases are renewed where nothing is open",
        function=RemoteEngineClient._follow,
        old="keeping.cancel()",
        new="pass",
        noticed_by="test_the_lease_is_renewed_while_requests_are_open",
    ),
    Fault(
        what="a shared stream ends with the request that came first",
        function=RemoteEngineClient._spawn,
        old="context=contextvars.Context()",
        new="context=None",
        noticed_by="test_the_shared_stream_does_not_belong_to_the_first_request",
    ),
    Fault(
        what="two who want a name get it on different replicas",
        function=RemoteEngineClient.pin_prefix,
        old="sorted(await asyncio.shield(self._spawn(self._handle.replicas())))",
        new="await asyncio.shield(self._spawn(self._handle.replicas()))",
        noticed_by="test_a_prefix_is_pinned_on_every_replica_in_one_order",
        aspect="prefixes",
    ),
    Fault(
        what="a prefix is computed for a client that has gone",
        function=RemoteEngineClient._pin_on,
        old="await stream.abort()",
        new="pass",
        noticed_by="test_whoever_stops_waiting_has_the_computation_ended",
        aspect="prefixes",
    ),
]

STREAM_FAULTS = [
    Fault(
        what="a choice ends twice for the reader",
        function=RemoteTokenStream.put,
        old="and delta.choice not in self._open",
        new="and not self._open",
        noticed_by="test_what_comes_after_the_end_of_a_choice_is_dropped",
    ),
    Fault(
        what="all choices end with the first",
        function=RemoteTokenStream.put,
        old="self._open.discard(delta.choice)",
        new="self._open.clear()",
        noticed_by="test_a_stream_ends_after_the_last_delta_of_its_last_choice",
    ),
    Fault(
        what="tokens that were not read before the end are lost",
        function=RemoteTokenStream.__aiter__,
        old="while self._open or self._unread:",
        new="while self._open:",
        noticed_by="test_a_stream_ends_after_the_last_delta_of_its_last_choice",
    ),
    Fault(
        what="what waits to be read is overtaken",
        function=UnreadOutput.is_waited_for,
        old="and not self._items",
        new="",
        noticed_by="test_a_reader_is_waited_for_only_while_it_has_nothing_to_do",
    ),
    Fault(
        what="what the reader still works on is overtaken",
        function=UnreadOutput.is_waited_for,
        old="self._is_waited_for and not",
        new="not",
        noticed_by="test_a_reader_is_waited_for_only_while_it_has_nothing_to_do",
    ),
    Fault(
        what="a process that is behind hands on each message by itself",
        function=Delivery.put,
        old="if self._pause is None:",
        new="if True:",
        noticed_by="test_what_comes_while_it_is_behind_is_handed_on_together",
    ),
    Fault(
        what="a choice is aborted again and again",
        function=RemoteTokenStream.abort_choice,
        old="self._open.remove(choice)",
        new="pass",
        noticed_by="test_an_aborted_choice_is_aborted_once_and_says_nothing_more",
    ),
    Fault(
        what="a request that has ended is aborted",
        function=RemoteTokenStream.abort,
        old="if self.has_ended:",
        new="if False:",
        noticed_by="test_abort_ends_the_request_once",
    ),
    Fault(
        what="a request that has ended fails",
        function=RemoteTokenStream.fail,
        old="if self._open:",
        new="if True:",
        noticed_by="test_a_failure_after_the_end_changes_nothing",
    ),
    Fault(
        what="the replica hears of a full window one byte late",
        function=Lease.received,
        old=">= ACKNOWLEDGED_BYTES",
        new="> ACKNOWLEDGED_BYTES",
        noticed_by="test_much_reading_is_reported_before_the_period_is_over",
    ),
    Fault(
        what="bytes of an earlier stream are acknowledged on a new one",
        function=Lease.attached,
        old="self._received_bytes = self._reported_bytes = 0",
        new="pass",
        noticed_by="test_a_stream_is_counted_from_its_own_beginning",
    ),
    Fault(
        what="the lease is not renewed after a failure",
        function=Lease._is_renewed,
        old="except EngineError",
        new="except KeyError",
        noticed_by="test_renewal_goes_on_after_a_failure",
    ),
    Fault(
        what="a replica is given up for failures that others have made good",
        function=Lease.keep,
        old="num_failed = 0 if await self._is_renewed() else num_failed + 1",
        new="num_failed += not await self._is_renewed()",
        noticed_by="test_a_replica_that_fails_again_and_again_is_given_up_once",
    ),
    Fault(
        what="an answer that waits behind a busy loop counts as none",
        function=Lease._is_renewed,
        old="if not call.done():",
        new="if True:",
        noticed_by="test_an_answer_that_came_while_the_loop_was_busy_counts",
    ),
    Fault(
        what="the stream of a replica that does not answer is read for ever",
        function=RemoteEngineClient._give_up,
        old="following.cancel()",
        new="pass",
        noticed_by="test_requests_of_a_replica_that_does_not_answer_go_on_elsewhere",
    ),
]

MESSAGE_FAULTS = [
    Fault(
        what="a client hears of what happens to requests of others",
        function=_select_events,
        old="int64([events.requests[row] for row in rows])",
        new="int64([events.requests[0] for row in rows])",
        noticed_by="test_clients_get_the_events_of_their_own_requests",
    ),
    Fault(
        what="events of others travel with the tokens of one client",
        function=split_by_client,
        old="columns = (output.request_ids, output.beam_requests, happened)",
        new="columns = (output.request_ids, output.beam_requests, int64())",
        noticed_by="test_an_output_with_events_of_one_client_is_passed_on_as_it_is",
    ),
    Fault(
        what="a client hears of the prefixes of other tenants",
        function=split_by_client,
        old="output.pinned is not None or ",
        new="",
        noticed_by="test_clients_get_what_concerns_their_requests_and_nothing_of_pins",
    ),
    Fault(
        what="a client hears of refusals of other clients",
        function=_select,
        old=" if refusal[0] in request_ids",
        new="",
        noticed_by="test_clients_get_what_concerns_their_requests_and_nothing_of_pins",
    ),
    Fault(
        what="token 0 is taken for no token",
        function=_gather,
        old="if token < 0:",
        new="if token <= 0:",
        noticed_by="test_deltas_keep_every_token_of_several_outputs_in_order",
    ),
    Fault(
        what="a limit and what exceeds it are swapped",
        function=error_of,
        old="got=refusal.got",
        new="got=refusal.limit",
        noticed_by="test_a_refusal_becomes_the_same_error_again",
    ),
    Fault(
        what="the time of a retry is lost on its way",
        function=refusal_of,
        old=", retry_after_s=error.retry_after_s",
        new="",
        noticed_by="test_a_refusal_becomes_the_same_error_again",
    ),
    Fault(
        what="a tenant sees the prefixes of others",
        function=list_prefixes,
        old="if prefix.salt == salt",
        new="if prefix.salt",
        noticed_by="test_a_tenant_sees_its_own_prefixes_and_the_seconds_they_have_left",
    ),
    Fault(
        what="a prefix counts as warm as soon as one replica has computed it",
        function=merge_prefixes,
        old="info.is_warm and other.is_warm",
        new="info.is_warm or other.is_warm",
        noticed_by="test_of_several_replicas_the_coldest_and_the_first_end_count",
    ),
]

LOOP_FAULTS = [
    Fault(
        what="an abort of one choice reaches the core as one of all",
        function=_carry_out,
        old="scheduler.abort(request_id, choice)",
        new="scheduler.abort(request_id)",
        noticed_by="test_one_choice_is_aborted_and_the_others_go_on",
    ),
    Fault(
        what="one command is taken a step",
        function=_commands,
        old="while message is not None:",
        new="if message is not None:",
        noticed_by="test_commands_that_arrive_together_are_carry_outed_before_the_next_step",
    ),
    Fault(
        what="a refusal by the core is swallowed",
        function=_add,
        old="return failure(choices, stats, refusal_of(error))",
        new="return None",
        noticed_by="test_a_request_that_the_core_refuses_fails_and_no_other",
    ),
    Fault(
        what="requests have no time of arrival",
        function=_add,
        old="replace(request, arrival_s=clock() - age_s)",
        new="request",
        noticed_by="test_a_request_has_the_time_of_its_arrival",
    ),
    Fault(
        what="a scheduler lives on when its loop has failed",
        function=_exit,
        old="os._exit(1)",
        new="pass",
        noticed_by="test_a_failure_of_the_loop_ends_the_process",
    ),
    Fault(
        what="the ranks wait for ever when the replica is gone",
        function=_run,
        old="executor.close()",
        new="pass",
        noticed_by="test_the_end_of_the_replica_lets_the_ranks_go",
    ),
]

CLIENT_FAULTS = [
    *REQUEST_FAULTS,
    *RESUME_FAULTS,
    *ONLY_CLIENT_FAULTS,
    *STREAM_FAULTS,
    *MESSAGE_FAULTS,
    *LOOP_FAULTS,
]
