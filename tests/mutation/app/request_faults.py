"""Faults of the way from a request to what the engine is asked for."""

from app.generation.named_prefix import check_prefix
from app.generation.pinned_prefixes import _encode as encode_pinned
from app.generation.pinned_prefixes import encode_prefixes
from app.generation.request.prepare import (
    _check_options,
    _max_tokens,
    _options,
    _sampling,
    _text_options,
    prepare_completion,
)
from app.generation.request.prompt_encoder import PromptEncoder
from app.generation.request.sampling import (
    _beam_params,
    _num_logprobs,
    is_ranked,
    sampling_params,
    scoring_params,
    with_defaults,
)
from tests.mutation.mutant import Fault

REQUEST_FAULTS = [
    # prepare
    Fault(
        what="one token more than fits is asked for",
        function=_max_tokens,
        old="min(limit, room)",
        new="min(limit, room + 1)",
        noticed_by="test_output_ends_where_the_room_ends",
    ),
    Fault(
        what="an output as long as the context is refused",
        function=_check_options,
        old="limit > encoder.max_model_len",
        new="limit >= encoder.max_model_len",
        noticed_by="test_more_output_than_the_context_holds_is_refused",
    ),
    Fault(
        what="stop tokens are not checked",
        function=_check_options,
        old='encoder.check_ids("stop_token_ids", request.stop_token_ids)',
        new="pass",
        noticed_by="test_ids_that_are_no_tokens_are_named",
    ),
    Fault(
        what="a completion loses its first space",
        function=prepare_completion,
        old="starts_text=False",
        new="starts_text=True",
        noticed_by="test_an_answer_begins_a_text_and_a_completion_goes_on_with_one",
    ),
    Fault(
        what="beams are ranked once more by another score",
        function=_options,
        old="request.num_candidates if is_ranked(request) else request.n",
        new="request.num_candidates",
        noticed_by="test_candidates_are_made_only_where_they_are_ranked",
    ),
    Fault(
        what="a wish to see control tokens is lost",
        function=_text_options,
        old="skip_special=request.skip_special_tokens",
        new="skip_special=True",
        noticed_by="test_the_wishes_for_the_text_are_kept",
    ),
    Fault(
        what="zero alternatives are taken for no log-probabilities",
        function=_text_options,
        old="num_logprobs=request.num_logprobs",
        new="num_logprobs=request.num_logprobs or None",
        noticed_by="test_the_wishes_for_the_text_are_kept",
    ),
    Fault(
        what="a prompt of one token is sent to be scored without a token",
        function=_sampling,
        old=" or len(ids) == 1",
        new="",
        noticed_by="test_nothing_is_asked_of_the_engine_where_there_is_nothing_to_score",
    ),
    # prompt_encoder
    Fault(
        what="a bad word may be said after a space",
        function=PromptEncoder._encode_bad_word,
        old='(stem, f" {stem}")',
        new="(stem,)",
        noticed_by="test_bad_words_are_meant_with_and_without_a_space_in_front",
    ),
    Fault(
        what="a bad word beyond the embedding reaches the engine",
        function=PromptEncoder.encode_bad_words,
        old="max(s) < self.vocab_size",
        new="max(s) <= self.vocab_size",
        noticed_by="test_bad_words_that_the_model_cannot_say_are_left_out",
    ),
    Fault(
        what="the first id beyond the embedding is accepted",
        function=PromptEncoder.check_ids,
        old="max(ids) < limit",
        new="max(ids) <= limit",
        noticed_by="test_the_first_id_that_is_no_token_is_named",
    ),
    Fault(
        what="a prompt may be one token longer than the context",
        function=PromptEncoder._check_room,
        old="num_tokens + min_output <= self.max_model_len",
        new="num_tokens + min_output <= self.max_model_len + 1",
        noticed_by="test_a_prompt_must_leave_room_for_the_output",
    ),
    Fault(
        what="a text far beyond the context is tokenised before it is refused",
        function=PromptEncoder.encode_chat,
        old='self._check_length("messages", num_characters)',
        new="pass",
        noticed_by="test_a_text_that_is_too_long_in_any_case_is_not_tokenised",
    ),
    Fault(
        what="a text of too many tokens is tokenised before it is refused",
        function=PromptEncoder._check_bound,
        old="self._check_room",
        new="str",
        noticed_by="test_a_text_of_too_many_tokens_is_not_tokenised",
    ),
    Fault(
        what="a conversation of too many tokens is refused where it is only counted",
        function=PromptEncoder.encode_chat,
        old="None if cut is not WHOLE else min_output",
        new="1",
        noticed_by="test_messages_that_are_only_counted_may_be_longer_than_the_context",
    ),
    Fault(
        what="a long text holds up the event loop",
        function=PromptEncoder.encode,
        old="run(\n        num_characters",
        new="run(\n        0",
        noticed_by="test_a_long_text_is_tokenised_beside_the_event_loop",
    ),
    # sampling
    Fault(
        what="requests without a seed draw the same",
        function=sampling_params,
        old="secrets.randbits(63) if request.seed in (None, -1) else request.seed",
        new="request.seed or 0",
        noticed_by="test_a_request_without_a_seed_gets_one_of_its_own",
    ),
    Fault(
        what="the model's defaults replace what a request names",
        function=with_defaults,
        old="defaults.keys() - request.model_fields_set",
        new="defaults",
        noticed_by="test_the_model_s_defaults_hold_where_a_request_names_nothing",
    ),
    Fault(
        what="a beam search takes the model's defaults of drawing",
        function=with_defaults,
        old="if request.use_beam_search:",
        new="if False:",
        noticed_by="test_a_beam_search_takes_no_defaults",
    ),
    Fault(
        what="a seed of zero is no seed",
        function=sampling_params,
        old="if request.seed in (None, -1) else request.seed",
        new="if not request.seed else request.seed",
        noticed_by="test_a_seed_is_kept",
    ),
    Fault(
        what="equal sequences are computed several times",
        function=sampling_params,
        old="request.num_candidates if request.temperature > 0 else 1",
        new="request.num_candidates",
        noticed_by="test_one_sequence_is_made_where_all_would_be_equal",
    ),
    Fault(
        what="a beam search is as wide as the number of its choices",
        function=_beam_params,
        old="beam_width=request.num_candidates",
        new="beam_width=request.n",
        noticed_by="test_a_beam_search_returns_the_best_of_its_width",
    ),
    Fault(
        what="candidates are ranked without log-probabilities",
        function=_num_logprobs,
        old="return 0",
        new="return None",
        noticed_by="test_ranking_needs_log_probabilities",
    ),
    Fault(
        what="a beam search is ranked like drawn candidates",
        function=is_ranked,
        old=" and not request.use_beam_search",
        new="",
        noticed_by="test_sequences_are_ranked_where_more_are_drawn_than_returned",
    ),
    Fault(
        what="a scored prompt may end in another token",
        function=scoring_params,
        old="allowed_token_ids=(last_token,)",
        new="allowed_token_ids=()",
        noticed_by="test_a_prompt_is_scored_by_making_the_engine_say_its_last_token",
    ),
    # named_prefix
    Fault(
        what="a prompt may begin otherwise than the prefix that it names",
        function=check_prefix,
        old="if tokens_digest(prompt.ids[: prefix.num_tokens]) != prefix.digest:",
        new="if False:",
        noticed_by="test_every_prompt_must_begin_with_the_prefix",
    ),
    # pinned_prefixes
    Fault(
        what="only the first tenant gets the configured prefixes",
        function=encode_prefixes,
        old="for salt in salts\n",
        new="for salt in salts[:1]\n",
        noticed_by="test_each_tenant_has_its_own_copy",
    ),
    Fault(
        what="the copies of the other tenants need no room",
        function=encode_prefixes,
        old="len(blocks) * len(salts)",
        new="len(blocks)",
        noticed_by="test_the_copies_of_all_tenants_must_fit",
    ),
    Fault(
        what="a pinned conversation ends with the beginning of an answer",
        function=encode_pinned,
        old="add_generation_prompt=False",
        new="add_generation_prompt=True",
        noticed_by="test_configured_prefixes_become_token_ids",
    ),
    Fault(
        what="a pinned prefix may fill the context",
        function=encode_pinned,
        old="len(ids) >= limit",
        new="len(ids) > limit",
        noticed_by="test_a_prefix_leaves_room_for_a_token",
    ),
]
