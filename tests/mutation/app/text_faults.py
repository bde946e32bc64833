"""Faults of the way from tokens to text and back."""

from app.text.beam_text import BeamTexts, _Node
from app.text.chat_template import ChatTemplate, _joined, _TimeBudget, _to_json
from app.text.chat_templates import ChatTemplates
from app.text.choice_text import ChoiceText
from app.text.control_tokens import ControlTokens, Disguise
from app.text.detokenizer import Detokenizer
from app.text.prompt_text import PromptText, _pieces, _unscored
from app.text.reply.repetition import RepetitionFinder
from app.text.stops.stop_matcher import StopMatcher
from app.text.stops.stop_pattern import StopPatternMaker
from app.text.text_options import TextOptions
from app.text.token_bound import TokenBound, _only_cuts, bound_of
from app.text.tokenizer import Tokenizer
from app.text.vocabulary import Vocabulary, _Spelling
from tests.mutation.mutant import Fault

TEXT_FAULTS = [
    # beam_text
    Fault(
        what="beams share the incomplete character of their parent",
        function=_Node.extend,
        old="self.detokenizer.fork()",
        new="self.detokenizer",
        noticed_by="test_half_a_character_is_not_shown_and_forks_complete_it_apart",
    ),
    Fault(
        what="the worst beams are shown",
        function=BeamTexts.best,
        old="reverse=True",
        new="reverse=False",
        noticed_by="test_the_best_are_shown_by_their_scores",
    ),
    Fault(
        what="a beam that a stop string ended loses the text before the stop string",
        function=BeamTexts._take,
        old="self._options.include_stop or index == ENDED_BY_PATTERN",
        new="self._options.include_stop",
        noticed_by="test_a_stop_string_inside_the_last_token_leaves_what_comes_before_it",
    ),
    Fault(
        what="the end token of a beam is left out of its score",
        function=_Node.end,
        old="replace(said, text",
        new="replace(self, text",
        noticed_by="test_the_tokens_of_a_finished_hypothesis_count_in_its_score",
    ),
    # chat_template
    Fault(
        what="a template runs for ever",
        function=_TimeBudget.__call__,
        old="time.thread_time() > self._end_s",
        new="False",
        noticed_by="test_a_template_without_an_end_refuses_the_messages",
    ),
    Fault(
        what="a template writes without an end",
        function=_joined,
        old="length > _MAX_CHARACTERS",
        new="False",
        noticed_by="test_a_template_that_writes_too_much_refuses_the_messages",
    ),
    Fault(
        what="the beginning of an answer is always rendered",
        function=ChatTemplate._rendered,
        old="add_generation_prompt=options.add_generation_prompt",
        new="add_generation_prompt=True",
        noticed_by="test_the_beginning_of_an_answer_is_rendered_where_it_is_wanted",
    ),
    Fault(
        what="a template escapes what is not ASCII",
        function=_to_json,
        old="ensure_ascii=ensure_ascii",
        new="ensure_ascii=True",
        noticed_by="test_tojson_keeps_characters_as_they_are",
    ),
    # choice_text
    Fault(
        what="tokens behind a stop string are counted",
        function=ChoiceText._decode,
        old="index + 1",
        new="last + 1",
        noticed_by="test_tokens_after_a_stop_string_do_not_count",
    ),
    Fault(
        what="the end token is shown",
        function=ChoiceText._decode,
        old="delta.finish_reason is FinishReason.STOP",
        new="delta.finish_reason is FinishReason.ABORT",
        noticed_by="test_the_end_token_counts_but_is_not_text",
    ),
    Fault(
        what="text held for a stop string is lost at the end",
        function=ChoiceText.push,
        old="self._push_tail() + self._matcher.flush()",
        new="self._push_tail()",
        noticed_by="test_text_held_for_a_stop_string_comes_with_the_end",
    ),
    Fault(
        what="an incomplete last character is dropped",
        function=ChoiceText.push,
        old="self._push_tail() + self._matcher.flush()",
        new="self._matcher.flush()",
        noticed_by="test_an_incomplete_last_character_is_the_last_token_s",
    ),
    Fault(
        what="text positions of log-probabilities stand still inside a delta",
        function=ChoiceText._hold,
        old="offset=self._num_decoded",
        new="offset=self._num_released",
        noticed_by="test_offsets_go_on_from_what_comes_before",
    ),
    Fault(
        what="a log-probability is reported before the text of its token",
        function=ChoiceText._release,
        old="room < len(first.text) or",
        new="",
        noticed_by="test_a_log_probability_waits_for_the_text_of_its_token",
    ),
    Fault(
        what="each delta reports the tokens of those before it again",
        function=ChoiceText._report,
        old="self._unreported, self._unreported_logprob = [], 0.0",
        new="pass",
        noticed_by="test_tokens_without_text_wait_for_the_character",
    ),
    Fault(
        what="the model's own end token is given as stop reason",
        function=ChoiceText._end,
        old="last if last in self._options.stop_token_ids else None",
        new="last",
        noticed_by="test_the_end_token_counts_but_is_not_text",
    ),
    # control_tokens
    Fault(
        what="a control token is looked for as JSON does not spell it",
        function=ControlTokens.__init__,
        old="all(map(stands_as_it_is, self.marks))",
        new="True",
        noticed_by="test_a_control_token_that_json_spells_otherwise_is_hidden_too",
    ),
    Fault(
        what="a message can spell control tokens",
        function=Disguise._hidden_in,
        old="self._pattern.sub(self._hide, value)",
        new="value",
        noticed_by="test_what_a_message_spells_out_is_plain_text_again",
    ),
    Fault(
        what="the model reads the mark of a hidden control token",
        function=Disguise.mark,
        old="if not self._hidden:",
        new="if True:",
        noticed_by="test_what_a_message_spells_out_is_plain_text_again",
    ),
    Fault(
        what="the template's control tokens are plain text",
        function=Disguise.mark,
        old="self._marks[match[0]]",
        new="match[0]",
        noticed_by="test_the_template_s_control_tokens_get_marks",
    ),
    Fault(
        what="the shortest spelling of a control token wins",
        function=ControlTokens.__init__,
        old="reverse=True",
        new="reverse=False",
        noticed_by="test_the_longest_spelling_wins",
    ),
    # detokenizer
    Fault(
        what="control tokens are shown",
        function=Detokenizer.push,
        old="token in self._skipped or ",
        new="",
        noticed_by="test_control_tokens_are_left_out_or_spelled",
    ),
    Fault(
        what="a character over several tokens is shown in halves",
        function=Detokenizer.push,
        old="self._decoder.decode(self._pieces[token])",
        new='self._pieces[token].decode(errors="replace")',
        noticed_by="test_characters_are_never_cut",
    ),
    Fault(
        what="a fork forgets the incomplete character",
        function=Detokenizer.fork,
        old="twin._decoder.setstate(self._decoder.getstate())",
        new="pass",
        noticed_by="test_a_fork_goes_on_from_the_same_half_of_a_character",
    ),
    Fault(
        what="every word loses its space",
        function=Detokenizer._emit,
        old="self._drops_space = False",
        new="pass",
        noticed_by="test_only_the_first_space_of_a_text_is_dropped",
    ),
    # prompt_text
    Fault(
        what="the scores of a prompt are one token early",
        function=PromptText.__init__,
        old="self._unscored.pop()",
        new="self._unscored[-1]",
        noticed_by="test_scores_belong_to_the_tokens_from_the_second_on",
    ),
    Fault(
        what="text positions of a prompt are counted in tokens",
        function=_unscored,
        old="+= len(piece)",
        new="+= 1",
        noticed_by="test_scores_belong_to_the_tokens_from_the_second_on",
    ),
    Fault(
        what="control tokens among ids are not echoed",
        function=_pieces,
        old="skip_special=False",
        new="skip_special=True",
        noticed_by="test_a_text_is_echoed_in_its_own_parts_and_ids_with_their_control_tokens",
    ),
    Fault(
        what="the engine is asked for the smaller number of alternatives",
        function=TextOptions.num_scored,
        old="max(",
        new="min(",
        noticed_by="test_the_engine_reports_what_either_list_needs",
    ),
    # stop_matcher
    Fault(
        what="a stop string over two pieces is missed",
        function=StopMatcher.push,
        old="pending = self._held + text",
        new="pending = text",
        noticed_by="test_stop_strings_cross_token_borders",
    ),
    Fault(
        what="the stop string that is found last wins",
        function=StopMatcher.push,
        old="min(found)",
        new="max(found)",
        noticed_by="test_first_to_be_complete_wins_and_then_the_longest",
    ),
    Fault(
        what="one character too few is held for a stop string",
        function=StopMatcher._safe_length,
        old="self._longest + 1",
        new="self._longest + 2",
        noticed_by="test_only_what_may_begin_a_stop_string_is_held",
    ),
    Fault(
        what="text is held that begins no stop string",
        function=StopMatcher._safe_length,
        old="pending[start:] in self._beginnings",
        new="True",
        noticed_by="test_text_that_begins_no_stop_string_is_never_held",
    ),
    # stop_pattern
    Fault(
        what="stop strings share their states",
        function=StopPatternMaker.make,
        old="first_state += len(data)",
        new="pass",
        noticed_by="test_several_stop_strings_do_not_mix",
    ),
    Fault(
        what="a stop string inside one token is missed by a beam search",
        function=StopPatternMaker._edges,
        old="if stop in piece:",
        new="if stop == piece:",
        noticed_by="test_a_stop_string_inside_one_token_is_found",
    ),
    Fault(
        what="a control token that is not shown interrupts a stop string",
        function=StopPatternMaker.make,
        old="if not piece or token in skipped",
        new="if not piece",
        noticed_by="test_control_tokens_that_are_not_shown_do_not_interrupt_a_stop_string",
    ),
    # tokenizer
    Fault(
        what="a prompt gets a second BOS",
        function=Tokenizer._with_one_bos,
        old="ids[1:] if",
        new="ids if",
        noticed_by="test_a_prompt_gets_one_bos",
    ),
    Fault(
        what="what a message spells out is encoded as control tokens",
        function=Tokenizer.render_chat,
        old="disguise.hide(messages)",
        new="messages",
        noticed_by="test_what_a_message_says_never_becomes_a_control_token",
    ),
    Fault(
        what="the first of several chat templates is taken",
        function=ChatTemplates.__init__,
        old="self._named.get(DEFAULT)",
        new="next(iter(self._named.values()), None)",
        noticed_by="test_one_template_is_for_all",
    ),
    # vocabulary
    Fault(
        what="every added token is a control token",
        function=Vocabulary.__init__,
        old=" if token.special",
        new="",
        noticed_by="test_an_added_token_outside_the_alphabet_stands_for_its_text",
    ),
    Fault(
        what="a byte token is shown as it is spelled",
        function=_Spelling.to_bytes,
        old="self.byte_fallback and",
        new="False and",
        noticed_by="test_byte_fallback_tokens_stand_for_bytes",
    ),
    # token_bound
    Fault(
        what="a token on a border of two parts is counted twice",
        function=TokenBound.at_least,
        old=" - (start > 0)",
        new="",
        noticed_by="test_a_long_text_is_looked_at_until_enough_is_found",
    ),
    Fault(
        what="what may be lost counts as a token",
        function=TokenBound._of_chunk,
        old="np.maximum.reduceat(self._is_sure[codes], starts)",
        new="1",
        noticed_by="test_what_is_unsure_counts_for_nothing_and_parts_nothing",
    ),
    Fault(
        what="a run is taken for one token",
        function=TokenBound._of_chunk,
        old="np.add.reduceat(self._weights[codes], starts)",
        new="0 * starts",
        noticed_by="test_a_run_has_as_many_tokens_as_its_bytes_need",
    ),
    Fault(
        what="a letter counts that an accent behind it changes",
        function=TokenBound._codes,
        old="not self._composes",
        new="True",
        noticed_by="test_what_the_next_character_may_change_is_unsure",
    ),
    Fault(
        what="white space counts that a control token swallows",
        function=bound_of,
        old="token.lstrip or token.rstrip",
        new="False",
        noticed_by="test_white_space_that_a_token_swallows_does_not_count",
    ),
    Fault(
        what="text counts that the pre-tokenizer drops",
        function=_only_cuts,
        old='part.get("behavior") != "Removed"',
        new="True",
        noticed_by="test_a_pre_tokenizer_that_loses_text_has_no_bound",
    ),
    Fault(
        what="a text counts the BOS that is dropped",
        function=Tokenizer.at_least,
        old=" - 1, 0)",
        new=", 0)",
        noticed_by="test_of_two_leading_bos_only_one_counts",
    ),
    # repetition
    Fault(
        what="a choice may say the same once more",
        function=RepetitionFinder.push,
        old="size * (limit.count - 1)",
        new="size * limit.count",
        noticed_by="test_it_is_found_at_once",
    ),
    Fault(
        what="a pattern that is broken off goes on counting",
        function=RepetitionFinder.push,
        old="if self._last[-size] == token else 0",
        new="if self._last[-size] == token else self._run_lens[index]",
        noticed_by="test_it_is_found_at_once",
    ),
]
