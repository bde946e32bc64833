"""Faults of what starts, watches and replaces the gang of a replica."""

from engine.executor.common_capacity import common_capacity
from engine.executor.several_nodes import find_away
from engine.runtime.loop import _step
from engine.runtime.replica.gang import (
    Gang,
    _discard,
    _load_rank,
    _start_ranks,
    start_gang,
)
from engine.runtime.replica.held_pins import HeldPins
from engine.runtime.replica.start import compute_first_token, start_replica
from engine.runtime.replica.watch.gang_keeper import GangKeeper
from engine.runtime.replica.watch.gang_process import GangProcess
from engine.runtime.replica.watch.watched_gang import WatchedGang
from engine.runtime.scheduler_actor import _exit
from tests.mutation.mutant import Fault

START_FAULTS = [
    Fault(
        what="processes are left behind when one of them cannot load",
        function=start_gang,
        old="await asyncio.shield(_discard(processes, folder))",
        new="pass",
        noticed_by="test_a_gang_that_cannot_start_leaves_nothing_behind",
    ),
    Fault(
        what="the next gang starts while processes of this one still run",
        function=_discard,
        old="await asyncio.wait(ends, timeout=END_TIMEOUT_S)",
        new="pass",
        noticed_by="test_a_gang_computes_what_its_scheduler_is_sent",
    ),
    Fault(
        what="rank 0 shares the bundle of the scheduler",
        function=_start_ranks,
        old="_placement(rank + 1)",
        new="_placement(rank)",
        noticed_by="test_every_process_has_its_resources_and_its_bundle",
    ),
    Fault(
        what="gangs do not get the swap space of the replica",
        function=start_gang,
        old="if arenas is not None:",
        new="if arenas is None:",
        noticed_by="test_ranks_load_with_the_swap_space_of_their_place",
    ),
    Fault(
        what="a rank on another node is to write the memory of this one",
        function=find_away,
        old="if not is_here(place)",
        new="if False",
        noticed_by="test_ranks_on_other_nodes_are_named",
    ),
    Fault(
        what="the swap space stays when the replica has ended",
        function=start_replica,
        old="supervisor.close_last(arenas.close)",
        new="pass",
        noticed_by="test_a_death_before_that_begins_it_all_again",
    ),
    Fault(
        what="the swap space stays when the replica cannot start",
        function=start_replica,
        old="await asyncio.shield(supervisor.close())",
        new="pass",
        noticed_by="test_a_start_that_fails_gives_the_swap_space_back",
    ),
    Fault(
        what="the rank with the largest pool counts",
        function=common_capacity,
        old="min(capacity.num_blocks",
        new="max(capacity.num_blocks",
        noticed_by="test_the_smallest_of_each_pool_and_the_slowest_rank_count",
    ),
    Fault(
        what="what a rank refuses on purpose looks like a death",
        function=_load_rank,
        old="raise error.cause from None",
        new="pass",
        noticed_by="test_what_a_rank_says_about_its_configuration_is_raised_as_it_is",
    ),
    Fault(
        what="a broken first step counts as a token",
        function=compute_first_token,
        old="if reason is not FinishReason.LENGTH:",
        new="if reason is FinishReason.NONE:",
        noticed_by="test_a_gang_without_a_first_token_is_not_ready",
    ),
]

PROCESS_FAULTS = [
    Fault(
        what="a process that is late counts as alive",
        function=Gang.ping,
        old="if late:",
        new="if False:",
        noticed_by="test_a_ping_names_those_that_do_not_answer_in_time",
    ),
    Fault(
        what="a dead process counts as an answer to a ping",
        function=Gang.ping,
        old="raise errors[0]",
        new="pass",
        noticed_by="test_a_ping_asks_every_process_and_raises_what_one_answers",
    ),
    Fault(
        what="a stopped process is left to Ray, which waits",
        function=GangProcess.kill,
        old="signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)",
        new="pass",
        noticed_by="test_a_stopped_process_is_killed_at_once",
    ),
    Fault(
        what="a process of another machine is taken for one of this",
        function=GangProcess.find,
        old="if process.space != own_process_id().space:",
        new="if False:",
        noticed_by="test_a_process_of_another_machine_is_left_to_ray",
    ),
]

WATCH_FAULTS = [
    Fault(
        what="requests that waited are ended like those that ran",
        function=WatchedGang.end,
        old="FinishReason.LOST if self._has_spoken else FinishReason.CRASHED",
        new="FinishReason.CRASHED",
        noticed_by="test_what_waited_is_lost_when_the_scheduler_has_named_what_ran",
    ),
    Fault(
        what="requests that may have run are ended like those that waited",
        function=WatchedGang.end,
        old="FinishReason.LOST if self._has_spoken else FinishReason.CRASHED",
        new="FinishReason.LOST",
        noticed_by="test_everything_has_crashed_when_the_scheduler_says_nothing",
    ),
    Fault(
        what="the scheduler has no last word when a rank is lost",
        function=WatchedGang.end,
        old="self._gang.kill_ranks()",
        new="pass",
        noticed_by="test_what_waited_is_lost_when_the_scheduler_has_named_what_ran",
    ),
    Fault(
        what="a frozen scheduler is waited for",
        function=WatchedGang._watch_pings,
        old="self._silence.set()",
        new="pass",
        noticed_by="test_a_scheduler_that_is_frozen_is_not_asked_for_its_last_word",
    ),
    Fault(
        what="a silent scheduler is waited for",
        function=WatchedGang._watch_pings,
        old="if self.is_silent:",
        new="if False:",
        noticed_by="test_a_silent_scheduler_is_lost_only_while_requests_are_open",
    ),
    Fault(
        what="an idle gang counts as silent",
        function=WatchedGang.is_silent,
        old="bool(self._owner.num_open) and ",
        new="",
        noticed_by="test_a_silent_scheduler_is_lost_only_while_requests_are_open",
    ),
    Fault(
        what="a process that does not answer is asked for ever",
        function=WatchedGang._watch_pings,
        old="self._lose(str(error))",
        new="pass",
        noticed_by="test_a_process_that_does_not_answer_counts_as_dead",
    ),
]

KEEPER_FAULTS = [
    Fault(
        what="a new gang starts before the old one is closed",
        function=GangKeeper._replace,
        old="self.reason = await self._end_gang()",
        new="asyncio.ensure_future(self._end_gang())",
        noticed_by="test_a_gang_that_is_lost_is_replaced_once_nothing_is_left_of_it",
    ),
    Fault(
        what="starts are tried for ever",
        function=GangKeeper._check_attempts,
        old=">= self._config.start_attempts",
        new=">= 10**9",
        noticed_by="test_a_start_ends_with_the_last_reason_when_its_attempts_are_used_up",
    ),
    Fault(
        what="gangs that die again and again count for nothing",
        function=GangKeeper._replace,
        old="0 if is_steady else self._num_failures + 1",
        new="0",
        noticed_by="test_gangs_that_die_soon_after_their_start_count_as_failures",
    ),
    Fault(
        what="old failures count for ever",
        function=GangKeeper._replace,
        old="0 if is_steady else self._num_failures + 1",
        new="self._num_failures + 1",
        noticed_by="test_a_gang_that_has_served_for_a_while_clears_the_account",
    ),
    Fault(
        what="a start that fails is repeated without a pause",
        function=GangKeeper._try_to_start,
        old="await asyncio.sleep(self._back_off_s())",
        new="await asyncio.sleep(0)",
        noticed_by="test_a_start_is_tried_again_and_the_reasons_are_reported",
    ),
    Fault(
        what="a start has no deadline",
        function=GangKeeper._start_one,
        old="asyncio.timeout(deadline_s)",
        new="asyncio.timeout(None)",
        noticed_by="test_a_start_has_a_deadline",
    ),
]

OTHER_GANG_FAULTS = [
    Fault(
        what="a second loss forgets what the first has lost",
        function=HeldPins.lose,
        old="self._missing |= {",
        new="self._missing = {",
        noticed_by="test_a_second_loss_forgets_nothing_of_the_first",
    ),
    Fault(
        what="nobody is said what ran when the executor failed",
        function=_step,
        old="channel.send(OUTPUTS.encode(crashed))",
        new="pass",
        noticed_by="test_the_death_of_a_worker_ends_the_loop_and_what_ran",
    ),
    Fault(
        what="commands that were not read reset the connection",
        function=_exit,
        old="channel.close()",
        new="pass",
        noticed_by="test_the_last_output_reaches_the_replica_whatever_it_has_sent",
    ),
]

GANG_FAULTS = [
    *START_FAULTS,
    *PROCESS_FAULTS,
    *WATCH_FAULTS,
    *KEEPER_FAULTS,
    *OTHER_GANG_FAULTS,
]
