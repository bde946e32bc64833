"""Faults of when steps are planned, and how long they may be."""

from engine.core.scheduling.token_budget import TokenBudget
from engine.executor.gang import GangExecutor
from engine.runtime.late_plans import LatePlans
from engine.runtime.loop import run_engine
from tests.mutation.mutant import Fault

PACE_FAULTS = [
    Fault(
        what="every long prompt is computed at once",
        function=TokenBudget.observe,
        old="self._num_long -= num_prompt_tokens > self._usual_tokens",
        new="pass",
        noticed_by="test_a_rare_long_prompt_is_computed_at_once_and_further_ones_are_cut",
    ),
    Fault(
        what="all the steps without a long one are saved up",
        function=TokenBudget.observe,
        old="min(_MOST_LONG, ",
        new="max(0.0, ",
        noticed_by="test_long_steps_are_saved_up_to_a_few",
    ),
    Fault(
        what="prompts that wait in numbers are cut like few",
        function=TokenBudget.num_tokens,
        old="div_ceil(num_waiting, _WAITING_PART)",
        new="0",
        noticed_by="test_what_waits_in_numbers_is_not_held_up",
    ),
    Fault(
        what="a short prompt uses up a long step",
        function=TokenBudget.num_tokens,
        old="_WORTH_IT * num_prompt_tokens",
        new="num_prompt_tokens",
        noticed_by="test_prompts_that_few_usual_steps_compute_are_worth_no_long_one",
    ),
    Fault(
        what="a step is thought to take as long as the latest one",
        function=TokenBudget.least_s,
        old="min(self._latest_decodes_s)",
        new="self._latest_decodes_s[-1]",
        noticed_by="test_a_step_takes_at_least_as_long_as_the_shortest_of_late",
    ),
    Fault(
        what="the time to hand a plan to the device is not left",
        function=LatePlans._lead_s,
        old=" + self._executor.enqueueing.seconds(has_prompts=has_prompts)",
        new="",
        noticed_by="test_a_plan_is_held_until_the_device_is_about_to_need_it",
    ),
    Fault(
        what="the time to make a plan is not left",
        function=LatePlans._lead_s,
        old="planning_s + ",
        new="",
        noticed_by="test_what_planning_takes_is_left_for_it",
    ),
    Fault(
        what="the loop is held when the commands have been taken",
        function=run_engine,
        old="is_due = hold()\n",
        new="is_due = True\n",
        noticed_by="test_who_comes_while_the_loop_is_held_is_in_the_next_step",
    ),
    Fault(
        what="a step is made though a command has ended the hold",
        function=run_engine,
        old="if is_due else",
        new="if True else",
        noticed_by="test_a_command_that_ends_a_hold_is_taken_before_the_next_one",
    ),
    Fault(
        what="steps without prompts are planned as early as those with",
        function=LatePlans.hold,
        old="_lead_s(has_prompts=has_prompts)",
        new="_lead_s(has_prompts=True)",
        noticed_by="test_times_of_plans_with_prompts_leave_the_others_theirs",
    ),
    Fault(
        what="a command does not end a hold",
        function=GangExecutor.wait,
        old="bool(ready) and",
        new="False and",
        noticed_by="test_waiting_ends_when_a_message_comes_by_another_channel",
    ),
    Fault(
        what="only the first rank's time to take a plan counts",
        function=GangExecutor.collect,
        old="max(reply.enqueue_s for reply in replies)",
        new="replies[0].enqueue_s",
        noticed_by="test_the_longest_time_of_late_to_take_a_plan_is_known",
    ),
    Fault(
        what="a hold goes on though a result is there",
        function=GangExecutor.wait,
        old="if any(self._replies):",
        new="if False:",
        noticed_by="test_waiting_ends_when_an_answer_is_there",
    ),
]
