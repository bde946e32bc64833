"""Faults of the choice of tokens."""

from engine.worker.sampling.grammars import Grammars, NextMasks
from engine.worker.sampling.late_choices import LateChoices, _complete
from engine.worker.sampling.logit_rules import LogitRules, _penalise, _Rules
from engine.worker.sampling.matchers import Compilations, RowMatcher
from engine.worker.sampling.pooling import Pooler
from engine.worker.sampling.sampler import (
    _apply_logit_rules,
    _choose,
    _columns,
    _draw_by_rules,
    _rank_by_rules,
    _with_listed,
    look_up,
    masks_of,
)
from engine.worker.worker import Worker
from kernels.reference import ReferenceBackend
from kernels.sampling import _first, is_random, sample
from tests.mutation.mutant import Fault

SAMPLING_FAULTS = [
    Fault(
        what="a row whose logits are no numbers gets a token",
        function=sample,
        old="tokens.where(largest.isfinite(), BROKEN)",
        new="tokens",
        noticed_by="test_logits_that_are_no_numbers_give_no_token",
    ),
    Fault(
        what="the alternatives of other rows are lost beside listed ids",
        function=_with_listed,
        old="top_tokens[:, :num_top] = chosen.top_tokens",
        new="pass",
        noticed_by="test_a_row_may_list_ids_of_its_own",
    ),
    Fault(
        what="tiny temperatures draw from infinities",
        function=is_random,
        old=">= SMALLEST_TEMPERATURE",
        new="> 0",
        noticed_by="test_tiny_temperatures_are_greedy_on_every_backend",
    ),
    Fault(
        what="rules hide that logits are no numbers",
        function=_choose,
        old="drawn.masked_fill(tokens[where] == BROKEN, BROKEN)",
        new="drawn",
        noticed_by="test_a_row_whose_logits_are_no_numbers_gets_no_token",
    ),
    Fault(
        what="rules change the logits that all rows are reported",
        function=_draw_by_rules,
        old=(
            "logits.index_select(0, where).float()\n"
            "    _apply_rules(backend, scores, indices, sampled, table)"
        ),
        new=(
            "logits\n"
            "    _apply_rules(backend, scores, indices, sampled, table)\n"
            "    scores = logits[where]"
        ),
        noticed_by="test_log_probabilities_are_raw_but_candidates_of_a_search_follow_its_rules",
    ),
    Fault(
        what="candidates of a search ignore its rules",
        function=_rank_by_rules,
        old="_apply_rules(backend, scores, indices, sampled, table)",
        new="pass",
        noticed_by="test_log_probabilities_are_raw_but_candidates_of_a_search_follow_its_rules",
    ),
    Fault(
        what="candidates of a search are normalised after its rules",
        function=_rank_by_rules,
        old="top_tokens = most_likely(scores,",
        new="scores = scores.log_softmax(dim=-1)\n    top_tokens = most_likely(scores,",
        noticed_by="test_log_probabilities_are_raw_but_candidates_of_a_search_follow_its_rules",
    ),
    Fault(
        what="rows that draw are greedy beside greedy ones",
        function=_columns,
        old="not is_random.any()",
        new="not is_random.all()",
        noticed_by="test_greedy_rows_stay_greedy_beside_rows_that_draw",
    ),
    Fault(
        what="a filter counts only where all rows have one",
        function=_columns,
        old="(is_random & parameters.is_filtered[sampled.rows]).any()",
        new="(is_random & parameters.is_filtered[sampled.rows]).all()",
        noticed_by="test_filters_hold_for_the_rows_that_have_them",
    ),
    Fault(
        what="rules do not see the last token",
        function=_apply_logit_rules,
        old="sampled.positions[indices]",
        new="sampled.positions[indices] - 1",
        noticed_by="test_rules_see_all_tokens_before_the_one_that_is_chosen",
    ),
    Fault(
        what="beside a row with rules others get the log-probabilities of torch",
        function=_choose,
        old="backend.report_logprobs(",
        new="__import__('kernels.sampling').sampling.with_logprobs(",
        noticed_by="test_the_company_of_a_ruled_row_changes_no_log_probability",
    ),
    Fault(
        what="equal candidates come in any order",
        function=_first,
        old=" - numbers)",
        new=" + numbers)",
        noticed_by="test_equal_scores_are_ranked_by_token",
    ),
    Fault(
        what="log-probabilities of prompts are those of the token before",
        function=look_up,
        old="rows, positions]",
        new="rows, positions - 1]",
        noticed_by="test_a_prompt_token_is_looked_up_behind_the_one_before_it",
    ),
    Fault(
        what="the prompt counts as output",
        function=_penalise,
        old="num_output = num_all - num_prompt",
        new="num_output = num_all",
        noticed_by="test_penalties_tell_the_prompt_from_the_output",
    ),
    Fault(
        what="the repetition penalty forgets the prompt",
        function=_penalise,
        old="num_all > 0",
        new="num_output > 0",
        noticed_by="test_penalties_tell_the_prompt_from_the_output",
    ),
    Fault(
        what="the repetition penalty raises negative logits",
        function=_penalise,
        old="old * repetition",
        new="old / repetition",
        noticed_by="test_penalties_tell_the_prompt_from_the_output",
    ),
    Fault(
        what="a presence counts as often as a token occurs",
        function=_penalise,
        old="presence * (num_output > 0)",
        new="presence * num_output",
        noticed_by="test_penalties_tell_the_prompt_from_the_output",
    ),
    Fault(
        what="what lies behind a row counts as its output",
        function=_penalise,
        old="(positions < end[:, None])",
        new="(positions >= 0)",
        noticed_by="test_tokens_beyond_a_row_and_beyond_the_vocabulary_count_for_nothing",
    ),
    Fault(
        what="ids beyond the vocabulary count as its last token",
        function=_penalise,
        old="is_known & ",
        new="",
        noticed_by="test_tokens_beyond_a_row_and_beyond_the_vocabulary_count_for_nothing",
    ),
    Fault(
        what="stop ids are kept back for one token more",
        function=LogitRules.mask,
        old="num_output < rule.min_tokens",
        new="num_output <= rule.min_tokens",
        noticed_by="test_a_stop_id_may_be_chosen_once_there_are_enough_tokens",
    ),
    Fault(
        what="min_tokens counts the prompt",
        function=masks_of,
        old=" - table.parameters.prompt_lens[rows]",
        new="",
        noticed_by="test_stop_ids_are_kept_back_for_tokens_of_the_output",
    ),
    Fault(
        what="words are looked for behind the end of a row",
        function=LogitRules._exclude_words,
        old="context.lengths[rows] - longest",
        new="context.tokens.shape[1] - longest + 0 * rows",
        noticed_by="test_each_row_has_its_own_penalties_bias_and_text",
    ),
    Fault(
        what="every row has the penalties of the first ones",
        function=LogitRules.apply,
        old="self._penalties[rows]",
        new="self._penalties[: len(rows)]",
        noticed_by="test_each_row_has_its_own_penalties_bias_and_text",
    ),
    Fault(
        what="a word that begins with the text is not found",
        function=LogitRules._exclude_words,
        old="len(word) - 1 <= ",
        new="len(word) <= ",
        noticed_by="test_a_bad_word_is_ruled_out_behind_its_beginning_only",
    ),
    Fault(
        what="a word is looked for at the beginning of the text",
        function=LogitRules._exclude_words,
        old="context.lengths[rows] - longest",
        new="0 * rows",
        noticed_by="test_a_bad_word_is_ruled_out_behind_its_beginning_only",
    ),
    Fault(
        what="allowed ids are the only ones that are excluded",
        function=_Rules.__init__,
        old="allow_only(self.mask, sampling.allowed_token_ids)",
        new="rule_out(self.mask, sampling.allowed_token_ids)",
        noticed_by="test_only_allowed_tokens_are_chosen",
    ),
    Fault(
        what="a row keeps the rules of its last sequence",
        function=LogitRules.set,
        old="self.is_active[row] = ",
        new="self.is_active[row] |= ",
        noticed_by="test_a_row_has_the_rules_of_its_last_sequence",
    ),
    Fault(
        what="a row keeps the penalties of its last sequence",
        function=LogitRules.set,
        old="self._penalties[row] = (",
        new="self._penalties[row] += (",
        noticed_by="test_a_row_has_the_rules_of_its_last_sequence",
    ),
    Fault(
        what="a stop id ends a text that its grammar does not call complete",
        function=NextMasks.write,
        old="allow if state.made().is_accepting() else rule_out",
        new="allow",
        noticed_by="test_stop_ids_are_allowed_where_the_text_is_complete_alone",
    ),
    Fault(
        what="a grammar that has failed lets its row end",
        function=NextMasks.write,
        old="mask[:] = 0",
        new="pass",
        noticed_by="test_an_error_allows_nothing",
    ),
    Fault(
        what="a fork reads on with its parent's matcher",
        function=RowMatcher.fork,
        old="self.matcher.deep_copy()",
        new="self.matcher",
        noticed_by="test_a_fork_goes_its_own_way",
    ),
    Fault(
        what="rows of a grammar fail once they have filled its lexer together",
        function=Grammars.compute_again,
        old="_FULL in state.made().get_error()",
        new="False",
        noticed_by="test_a_lexer_that_many_rows_have_filled_is_replaced",
    ),
    Fault(
        what="rows of a grammar wait for each other",
        function=Compilations.take_turn,
        old="(self._turn + 1) % self._num_copies",
        new="self._turn",
        noticed_by="test_rows_of_one_grammar_take_turns",
    ),
    Fault(
        what="masks hide that logits are no numbers",
        function=ReferenceBackend.sample_masked,
        old="tokens.masked_fill(is_broken, sampling.BROKEN)",
        new="tokens",
        noticed_by="test_masks_hide_no_broken_row",
    ),
    Fault(
        what="a step's result holds up the choice behind it",
        function=LateChoices.begin,
        old="self._before.let_pass(begun)",
        new="pass",
        noticed_by="test_a_step_gives_its_result_when_the_choice_behind_it_is_under_way",
    ),
    Fault(
        what="a choice that fails holds up the step before for ever",
        function=_complete,
        old="    finally:\n        begun.set()",
        new="    finally:\n        pass",
        noticed_by="test_an_error_of_a_choice_ends_its_step_and_the_next_but_not_the_one_before",
    ),
    Fault(
        what="a plan is carried out before the choice of the step before is enqueued",
        function=Worker.enqueue,
        old="self._late.wait()",
        new="pass",
        noticed_by="test_a_plan_waits_for_the_choice_before_it",
    ),
    Fault(
        what="a grammar reads the token of the first row of its step",
        function=Grammars.note,
        old="(step, place)",
        new="(step, 0)",
        noticed_by="test_a_row_is_followed_from_step_to_step",
    ),
    Fault(
        what="a mean forgets the chunks before the last",
        function=Pooler._add_chunks,
        old="total += self._sums[row]",
        new="pass",
        noticed_by="test_vectors_equal_transformers",
    ),
    Fault(
        what="a mean goes on with the sum of a row's last prompt",
        function=Pooler._add_chunks,
        old="if spans.starts[index]:",
        new="if row in self._sums:",
        noticed_by="test_a_prompt_that_is_aborted_leaves_nothing_in_the_mean_of_the_next",
    ),
    Fault(
        what="the vector is that of the first token that was fed",
        function=Pooler.pool,
        old="hidden[int(end)]",
        new="hidden[0]",
        noticed_by="test_vectors_equal_transformers",
    ),
]
