"""Faults of what runs beside the scheduler in an engine replica: mailboxes and the rest."""

from engine.runtime.metrics.preemption_log import PreemptionLog
from engine.runtime.replica.async_channel import AsyncChannel
from engine.runtime.replica.client_processes import _runs_here
from engine.runtime.replica.client_session import ClientSession
from engine.runtime.replica.open_choices import OpenChoices
from engine.runtime.replica.pin_at_start import pin_configured_prefixes, pin_prefixes_of_peers
from engine.runtime.replica.scratch_folder import ScratchFolder
from tests.mutation.mutant import Fault

MAILBOX_FAULTS = [
    Fault(
        what="a request is ended at its bound instead of beyond it",
        function=ClientSession._hold,
        old="self._held_bytes[each] > limit",
        new="self._held_bytes[each] >= limit",
        noticed_by="test_of_a_client_without_a_stream_each_request_is_kept_up_to_its_bound",
    ),
    Fault(
        what="a message counts as a whole for each request in it",
        function=ClientSession._hold,
        old="num_bytes // len(own)",
        new="num_bytes",
        noticed_by="test_no_more_than_the_window_is_on_its_way",
    ),
    Fault(
        what="more than the window may be on its way",
        function=ClientSession._may_send,
        old="on_their_way < self._limits.window_bytes",
        new="True",
        noticed_by="test_no_more_than_the_window_is_on_its_way",
    ),
    Fault(
        what="a stream does not go on when its client has read",
        function=ClientSession.renew,
        old="self._wake_up.set()",
        new="pass",
        noticed_by="test_no_more_than_the_window_is_on_its_way",
    ),
    Fault(
        what="what has gone counts as waiting",
        function=ClientSession._take_batch,
        old="self._held_bytes.clear()",
        new="pass",
        noticed_by="test_no_more_than_the_window_is_on_its_way",
    ),
    Fault(
        what="a client that reads nothing is kept for ever",
        function=ClientSession._check_lease,
        old="self._on_lost(SLOW)",
        new="pass",
        noticed_by="test_a_client_that_reads_nothing_for_long_is_given_up",
    ),
    Fault(
        what="bytes that an earlier stream has sent still count",
        function=ClientSession.stream,
        old="self._sent_bytes = self._received_bytes = 0",
        new="pass",
        noticed_by="test_a_new_stream_does_not_answer_for_what_an_earlier_one_lost",
    ),
    Fault(
        what="a late renewal gives credit for bytes that were never sent",
        function=ClientSession.renew,
        old="min(received_bytes, self._sent_bytes)",
        new="received_bytes",
        noticed_by="test_a_new_stream_does_not_answer_for_what_an_earlier_one_lost",
    ),
    Fault(
        what="renewal does not renew the lease",
        function=ClientSession.renew,
        old="self._heard_s = self._loop.time()",
        new="pass",
        noticed_by="test_renewal_keeps_the_lease_of_an_attached_client",
    ),
    Fault(
        what="a client without a stream keeps its lease",
        function=ClientSession.renew,
        old="if self._is_attached:",
        new="if True:",
        noticed_by="test_renewal_does_not_help_a_client_that_is_not_attached",
    ),
    Fault(
        what="the lease is looked at only once",
        function=ClientSession._check_lease,
        old="self._timer = self._loop.call_later(left_s, self._check_lease)",
        new="pass",
        noticed_by="test_renewal_keeps_the_lease_of_an_attached_client",
    ),
    Fault(
        what="a busy client is given up at once",
        function=ClientSession._ask,
        old="elif lives:",
        new="elif False:",
        noticed_by="test_a_silent_client_is_forgiven_while_its_process_lives",
    ),
    Fault(
        what="a busy client is forgiven for ever",
        function=ClientSession._check_lease,
        old=" and silent_s < self._limits.forgiven_s",
        new="",
        noticed_by="test_a_silent_client_is_not_forgiven_for_ever",
    ),
    Fault(
        what="a client that renews too late to be asked for is given up",
        function=ClientSession._ask,
        old="if self._loop.time() - self._heard_s < self._limits.lease_s:",
        new="if False:",
        noticed_by="test_a_client_that_renews_while_its_process_is_asked_for_is_kept",
    ),
    Fault(
        what="another process is taken for that of a client",
        function=_runs_here,
        old="abs(found.create_time() - process.started_s) < 1.0",
        new="True",
        noticed_by="test_a_later_process_with_the_same_id_is_another_one",
    ),
    Fault(
        what="a killed process that nobody has waited for lives",
        function=_runs_here,
        old=" and found.status() != str(psutil.STATUS_ZOMBIE)",
        new="",
        noticed_by="test_a_process_lives_until_it_has_ended",
    ),
    Fault(
        what="a lease runs out after the end of its session",
        function=ClientSession.close,
        old="self._timer.cancel()",
        new="pass",
        noticed_by="test_a_closed_mailbox_ends_every_stream_with_its_reason",
    ),
    Fault(
        what="a second stream does not take over",
        function=ClientSession.stream,
        old="self._stream += 1",
        new="pass",
        noticed_by="test_a_second_stream_takes_over",
    ),
    Fault(
        what="the end of the first stream detaches the second",
        function=ClientSession.stream,
        old="        if mine == self._stream:\n",
        new="        if True:\n",
        noticed_by="test_renewal_keeps_the_lease_of_an_attached_client",
    ),
    Fault(
        what="the first output of a request waits with the others",
        function=ClientSession.opened,
        old="self._unanswered.add(request_id)",
        new="pass",
        noticed_by="test_later_outputs_are_gathered_and_the_first_of_a_request_goes_at_once",
    ),
    Fault(
        what="every output of a request counts as its first",
        function=ClientSession._note_first_output,
        old="self._unanswered.difference_update(firsts)",
        new="pass",
        noticed_by="test_later_outputs_are_gathered_and_the_first_of_a_request_goes_at_once",
    ),
    Fault(
        what="what is gathered a second time is never sent",
        function=ClientSession._stop_gathering,
        old="self._flush = None",
        new="pass",
        noticed_by="test_gathered_outputs_go_when_their_time_has_come",
    ),
    Fault(
        what="what was gathered is lost when the stream ends itself",
        function=ClientSession._wait_for_output,
        old="return bool(self._messages)",
        new="return False",
        noticed_by="test_a_stream_that_ends_itself_first_gives_what_was_gathered",
    ),
]

OTHER_REPLICA_FAULTS = [
    Fault(
        what="a request stays open after its last choice",
        function=OpenChoices.close,
        old="del self._choices[request_id]",
        new="pass",
        noticed_by="test_a_request_ends_with_its_last_choice",
    ),
    Fault(
        what="a choice may end twice",
        function=OpenChoices.close,
        old="if choice not in choices:",
        new="if not choices:",
        noticed_by="test_what_is_not_open_ends_nothing",
    ),
    Fault(
        what="a message begins where the one before it was interrupted",
        function=AsyncChannel._flush,
        old="self._start = 0",
        new="pass",
        noticed_by="test_messages_beyond_the_buffer_are_sent_when_there_is_room",
    ),
    Fault(
        what="a peer that sends nonsense is listened to",
        function=AsyncChannel._receive,
        old='logger.exception("bad_message")\n        self._end()',
        new='logger.exception("bad_message")',
        noticed_by="test_a_message_that_cannot_be_used_ends_the_connection",
    ),
    Fault(
        what="every preemption is logged",
        function=PreemptionLog.note,
        old=" or now_s < self._quiet_until_s",
        new="",
        noticed_by="test_preemptions_are_logged_once_in_a_period_and_none_is_left_out",
    ),
    Fault(
        what="the files of a gang stay after its end",
        function=ScratchFolder.close,
        old="shutil.rmtree(self.path, ignore_errors=True)",
        new="pass",
        noticed_by="test_the_folder_is_private_and_goes_with_what_is_in_it",
    ),
    Fault(
        what="prefixes that the replica holds are pinned again",
        function=pin_prefixes_of_peers,
        old=" if _key(pin) not in held",
        new="",
        noticed_by="test_of_the_peers_prefixes_those_are_pinned_once_that_are_missing",
    ),
    Fault(
        what="only the first of the configured prefixes is pinned",
        function=pin_configured_prefixes,
        old="await _pin(client, prefix)",
        new="return await _pin(client, prefix)",
        noticed_by="test_prefixes_are_computed_one_after_the_other",
    ),
]

REPLICA_FAULTS = [*MAILBOX_FAULTS, *OTHER_REPLICA_FAULTS]
