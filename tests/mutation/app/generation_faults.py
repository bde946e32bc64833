"""Faults of the way from the engine's output to the choices of an answer."""

from app.generation.cancellation import finish
from app.generation.generation import Generation, _rank, _submit
from app.generation.intervals import in_intervals
from app.generation.prompt_reader import PromptReader
from app.generation.timeline import _next_phase, _phases
from tests.mutation.mutant import Fault

GENERATION_FAULTS = [
    # timeline
    Fault(
        what="a request that has left the batch is decoded",
        function=_next_phase,
        old="if kind is EventKind.PREFILLED and phase == _PREEMPTED:",
        new="if False:",
        noticed_by="test_time_out_of_the_batch_counts_for_itself",
    ),
    Fault(
        what="another engine need not prefill",
        function=_phases,
        old="kind is not EventKind.QUEUED and (",
        new="(",
        noticed_by="test_another_engine_begins_again",
    ),
    # generation
    Fault(
        what="a request that was cancelled at its end stays until a search for garbage",
        function=finish,
        old="del cancelled",
        new="pass",
        noticed_by="test_a_cancelled_caller_leaves_nothing_to_the_garbage_collector",
    ),
    Fault(
        what="the worst of the candidates are returned",
        function=Generation.best,
        old="reverse=True",
        new="reverse=False",
        noticed_by="test_the_likeliest_candidates_are_kept_best_first",
    ),
    Fault(
        what="a longer candidate is worse for its length",
        function=_rank,
        old=" / max(1, len(text.token_ids))",
        new="",
        noticed_by="test_a_longer_candidate_is_not_worse_for_its_length",
    ),
    Fault(
        what="the best are chosen among the candidates of all prompts",
        function=Generation.best,
        old="texts[start : start + num_candidates]",
        new="texts[start:]",
        noticed_by="test_the_best_are_chosen_for_each_prompt",
    ),
    Fault(
        what="only the first of equal choices gets text",
        function=Generation._read,
        old="range(start, start + num_copies)",
        new="range(start, start + 1)",
        noticed_by="test_equal_candidates_are_computed_once_and_given_to_all",
    ),
    Fault(
        what="choices of several prompts get equal numbers",
        function=Generation._read,
        old="number * num_candidates + choice",
        new="number + choice",
        noticed_by="test_candidates_are_numbered_prompt_by_prompt",
    ),
    Fault(
        what="only the last tokens of a choice are counted",
        function=Generation._read,
        old="self._num_sampled[index] += ",
        new="self._num_sampled[index] = ",
        noticed_by="test_tokens_are_counted_for_each_candidate_and_each_prompt_once",
    ),
    Fault(
        what="the prompt is counted for each choice",
        function=Generation.total_usage,
        old="sum(reader.num_prompt_tokens for",
        new="self._options.num_candidates * sum(reader.num_prompt_tokens for",
        noticed_by="test_tokens_are_counted_for_each_candidate_and_each_prompt_once",
    ),
    Fault(
        what="a refused prompt leaves those before it running",
        function=Generation.start,
        old="await _abort(readers)",
        new="pass",
        noticed_by="test_a_refused_prompt_undoes_those_before_it",
    ),
    Fault(
        what="the requests of a client that has gone run on",
        function=Generation.close,
        old="await _abort(self._readers)",
        new="pass",
        noticed_by="test_closing_aborts_every_prompt_that_has_not_ended",
    ),
    Fault(
        what="tenants share their prefix cache",
        function=_submit,
        old="salt=salt",
        new='salt=b""',
        noticed_by="test_the_engine_gets_the_prompt_and_the_salt",
    ),
    Fault(
        what="the last token of a prompt is scored twice",
        function=_submit,
        old="prompt.ids[:-1] if options.is_scoring else prompt.ids",
        new="prompt.ids",
        noticed_by="test_a_prompt_that_is_only_scored_is_sent_without_its_last_token",
    ),
    # prompt_reader
    Fault(
        what="a choice that a stop string ended is computed on",
        function=PromptReader._take,
        old="self._cut.append(delta.choice)",
        new="pass",
        noticed_by="test_a_choice_that_a_stop_string_ends_is_aborted_while_the_others_go_on",
    ),
    Fault(
        what="a stop string in one choice aborts the others",
        function=PromptReader._abort_cut,
        old="self._stream.abort_choice(choice)",
        new="self._stream.abort()",
        noticed_by="test_a_choice_that_a_stop_string_ends_is_aborted_while_the_others_go_on",
    ),
    Fault(
        what="a request runs on after the stop string of its last choice",
        function=PromptReader._end,
        old="await self.abort()",
        new="pass",
        noticed_by="test_the_request_is_aborted_once_every_choice_has_met_a_stop_string",
    ),
    Fault(
        what="a request that has ended is aborted",
        function=PromptReader._end,
        old="if self._running:",
        new="if True:",
        noticed_by="test_what_has_ended_is_not_aborted",
    ),
    Fault(
        what="a reader that is left early aborts nothing",
        function=PromptReader.abort,
        old="if stream is not None:",
        new="if False:",
        noticed_by="test_a_reader_that_is_left_early_aborts_the_request_once",
    ),
    Fault(
        what="an abort is given up when it is cancelled",
        function=PromptReader.abort,
        old="await finish(asyncio.ensure_future(stream.abort()))",
        new="await stream.abort()",
        noticed_by="test_an_abort_completes_while_it_is_cancelled",
    ),
    Fault(
        what="every delta echoes the prompt",
        function=PromptReader._take,
        old="self._unopened.remove(delta.choice)",
        new="pass",
        noticed_by="test_each_choice_begins_with_the_prompt_and_only_once",
    ),
    Fault(
        what="text positions start again behind the prompt",
        function=PromptReader.__init__,
        old="start=len(self._prompt.text)",
        new="start=0",
        noticed_by="test_text_positions_go_on_behind_the_prompt",
    ),
    Fault(
        what="text comes before the scores of its prompt",
        function=PromptReader._due,
        old="if self._prompt.num_missing:",
        new="if False:",
        noticed_by="test_text_waits_for_the_scores_of_the_prompt",
    ),
    Fault(
        what="a stream that breaks off is taken for an end",
        function=PromptReader.__aiter__,
        old="raise EngineError(_BROKEN_OFF)",
        new="return",
        noticed_by="test_a_stream_without_an_end_is_an_error",
    ),
    Fault(
        what="a later delta forgets the cached tokens",
        function=PromptReader.__aiter__,
        old="self.num_cached += delta.num_cached",
        new="self.num_cached = delta.num_cached",
        noticed_by="test_cached_tokens_are_those_of_all_deltas",
    ),
    # intervals
    Fault(
        what="the first token of a choice waits for others",
        function=in_intervals,
        old="is_first or ",
        new="",
        noticed_by="test_the_first_and_the_last_come_at_once",
    ),
    Fault(
        what="tokens that were collected are lost with the engine",
        function=in_intervals,
        old="if parts:",
        new="if not parts:",
        noticed_by="test_what_came_before_a_failure_comes_before_it",
    ),
]
