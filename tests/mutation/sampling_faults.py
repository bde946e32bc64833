"""Faults of the choice of tokens."""

from engine.worker.sampling.grammars import Grammars, _Grammar, _Row
from engine.worker.sampling.logit_rules import LogitRules, _penalise, _Rules
from engine.worker.sampling.sampler import (
    _apply_logit_rules,
    _columns,
    _masks,
    choose,
    choose_masked,
    look_up,
    sample_batch,
)
from kernels.sampling import is_random, sample
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
        what="tiny temperatures draw from infinities",
        function=is_random,
        old=">= SMALLEST_TEMPERATURE",
        new="> 0",
        noticed_by="test_tiny_temperatures_are_greedy_on_every_backend",
    ),
    Fault(
        what="rules hide that logits are no numbers",
        function=choose,
        old="drawn.masked_fill(tokens[where] == BROKEN, BROKEN)",
        new="drawn",
        noticed_by="test_a_row_whose_logits_are_no_numbers_gets_no_token",
    ),
    Fault(
        what="rules change the logits that all rows are reported",
        function=choose,
        old=(
            "logits.index_select(0, where).float()\n"
            "        _apply_rules(backend, scores, drawing, sampled, table)"
        ),
        new=(
            "logits\n"
            "        _apply_rules(backend, scores, drawing, sampled, table)\n"
            "        scores = logits[where]"
        ),
        noticed_by="test_log_probabilities_are_raw_but_candidates_of_a_search_follow_its_rules",
    ),
    Fault(
        what="candidates of a search ignore its rules",
        function=choose,
        old="_apply_rules(backend, scores, searching, sampled, table)",
        new="pass",
        noticed_by="test_log_probabilities_are_raw_but_candidates_of_a_search_follow_its_rules",
    ),
    Fault(
        what="candidates of a search are normalised after its rules",
        function=choose,
        old=(
            ".float().log_softmax(dim=-1)\n"
            "        _apply_rules(backend, scores, searching, sampled, table)"
        ),
        new=(
            ".float()\n"
            "        _apply_rules(backend, scores, searching, sampled, table)\n"
            "        scores = scores.log_softmax(dim=-1)"
        ),
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
        function=_masks,
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
        function=Grammars.allowed,
        old="allow if matcher.is_accepting() else rule_out",
        new="allow",
        noticed_by="test_stop_ids_are_allowed_where_the_text_is_complete_alone",
    ),
    Fault(
        what="a grammar that has failed lets its row end",
        function=Grammars.allowed,
        old="if matcher.is_error():",
        new="if not matcher:",
        noticed_by="test_an_error_allows_nothing",
    ),
    Fault(
        what="a fork reads on with its parent's matcher",
        function=_Row.fork,
        old="self.matcher.deep_copy()",
        new="self.matcher",
        noticed_by="test_a_fork_goes_its_own_way",
    ),
    Fault(
        what="rows of a grammar fail once they have filled its lexer together",
        function=Grammars.allowed,
        old="_FULL in matchers[index].get_error()",
        new="False",
        noticed_by="test_a_lexer_that_many_rows_have_filled_is_replaced",
    ),
    Fault(
        what="rows of a grammar wait for each other",
        function=_Grammar.take_turn,
        old="(self._turn + 1) % self._num_copies",
        new="self._turn",
        noticed_by="test_rows_of_one_grammar_take_turns",
    ),
    Fault(
        what="masks hide that logits are no numbers",
        function=choose_masked,
        old="tokens.masked_fill(is_broken, BROKEN)",
        new="tokens",
        noticed_by="test_a_broken_row_behind_masks_ends_by_itself",
    ),
    Fault(
        what="a grammar reads the token of the first row of its step",
        function=Grammars.note,
        old="(step, place)",
        new="(step, 0)",
        noticed_by="test_a_row_is_followed_from_step_to_step",
    ),
    Fault(
        what="a broken row has no valid token to go on with",
        function=sample_batch,
        old=".clamp(min=0)",
        new="",
        noticed_by="test_the_engine_goes_on_after_broken_rows",
    ),
]
