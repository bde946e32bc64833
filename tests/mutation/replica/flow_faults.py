"""Faults of predicted waits and of what an ingress refuses by itself."""

from engine.runtime.flow.submission_gate import SubmissionGate, _Account, _Said
from engine.runtime.flow.waiting_line import WaitingLine
from engine.runtime.replica.admission import Admission
from engine.runtime.replica.supervisor import Supervisor
from tests.mutation.mutant import Fault

FLOW_FAULTS = [
    Fault(
        what="one request more than allowed may wait",
        function=Admission._check_requests,
        old="if num_waiting >= most.together:",
        new="if num_waiting > most.together:",
        noticed_by="test_a_full_queue_names_the_time_until_it_has_room",
    ),
    Fault(
        what="a queue is full of tokens one token too early",
        function=Admission._check_tokens,
        old="> most.together",
        new=">= most.together",
        noticed_by="test_the_queue_may_be_full_of_tokens",
    ),
    Fault(
        what="a request waits for longer than its terms allow",
        function=Admission.check,
        old="if wait_s > terms.max_wait_s:",
        new="if False:",
        noticed_by="test_who_would_wait_for_too_long_is_refused_at_once",
    ),
    Fault(
        what="what was ended in the queue counts as served",
        function=WaitingLine._begin,
        old="left if reason not in (FinishReason.EXPIRED, FinishReason.ABORT) else 0.0",
        new="left",
        noticed_by="test_what_was_ended_in_the_queue_says_nothing_of_the_pace",
    ),
    Fault(
        what="an account waits for all the work of others",
        function=WaitingLine._cost_before,
        old="min(lane.cost, own * lane.weight)",
        new="lane.cost",
        noticed_by="test_an_account_waits_for_its_own_work_and_others_share",
    ),
    Fault(
        what="who came first keeps the queue from others",
        function=Admission._requests,
        old="self._line.share_of(terms)",
        new="1.0",
        noticed_by="test_accounts_that_wait_share_the_queue_by_their_weights",
    ),
    Fault(
        what="long prompts of one account keep the queue from others",
        function=Admission._tokens,
        old="self._line.share_of(terms)",
        new="1.0",
        noticed_by="test_accounts_that_wait_share_the_tokens_of_the_queue_by_their_weights",
    ),
    Fault(
        what="an account beside which nobody waits may not have the whole queue",
        function=WaitingLine.share_of,
        old="if key != terms.account",
        new="",
        noticed_by="test_an_account_waits_for_its_own_work_and_others_share",
    ),
    Fault(
        what="each of several ingresses takes all places that open",
        function=Admission.with_room,
        old=" / max(1, num_clients)",
        new="",
        noticed_by="test_each_client_hears_of_its_part_of_the_places_that_open",
    ),
    Fault(
        what="a client that goes away leaves no room",
        function=Supervisor._forget,
        old="self._meters.forget(request_ids)",
        new="pass",
        noticed_by="test_who_would_wait_too_long_is_refused_and_others_know_the_room",
    ),
    Fault(
        what="a full replica is asked again at once",
        function=_Account.excess,
        old="if said.at_s > forgotten_s",
        new="if False",
        noticed_by="test_a_full_replica_is_not_asked_again_for_a_moment",
    ),
    Fault(
        what="a full replica is never asked again",
        function=_Account.excess,
        old="if said.at_s > forgotten_s",
        new="",
        noticed_by="test_a_full_replica_is_not_asked_again_for_a_moment",
    ),
    Fault(
        what="places are asked for before they have opened",
        function=_Said.room,
        old="max(0.0, self.verdict.opens_per_s * age_s - SPARE)",
        new="1.0",
        noticed_by="test_of_an_overload_nearly_all_is_refused_without_a_call",
    ),
    Fault(
        what="a place is lost with who went away when it had it",
        function=SubmissionGate._turn,
        old="self._leave(account)",
        new="pass",
        noticed_by="test_who_goes_away_gives_its_place_to_the_next",
    ),
]
