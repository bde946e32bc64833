"""Sampling controls against transformers and against their formulas."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.types import FinishReason, RowAdmission, SamplingParams, int32
from engine.worker.sampling.logit_rules import Context, LogitRules
from engine.worker.sampling.token_masks import full_mask
from kernels.runtime import HostRuntime
from kernels.sampling import mask_tokens
from tests.engine.model.tiny import VOCAB_SIZE, TinyModel
from tests.engine.whole.engine_run import run

_NUM_TOKENS = 16
_GREEDY = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0, num_logprobs=0)
_PROMPT = [17, 4, 17, 33, 4, 17, 90, 200]


@torch.inference_mode()
def _expected(tiny: TinyModel, prompt: list[int] = _PROMPT, **processors: Any) -> list[int]:
    output = tiny.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=_NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
        **processors,
    )
    return [int(token) for token in output[0, len(prompt) :]]


def _generate(tiny: TinyModel, prompt: list[int] = _PROMPT, **controls: Any) -> list[int]:
    return run(tiny, [prompt], replace(_GREEDY, **controls)).reported[0, 0].tokens


def _penalised(tiny: TinyModel, presence: float, frequency: float) -> list[int]:
    """Greedy choices by the formula: c the count of a token in the output so far,
    logit - c * frequency - (c > 0) * presence.
    """
    output: list[int] = []
    for _ in range(_NUM_TOKENS):
        scores = tiny.logprobs(_PROMPT + output)[-1].clone()
        for token, count in Counter(output).items():
            scores[token] -= count * frequency + presence
        output.append(int(scores.argmax()))
    return output


@pytest.mark.parametrize("penalty", [0.6, 1.3, 2.5])
def test_repetition_penalty_is_that_of_transformers(tiny: TinyModel, penalty: float) -> None:
    expected = _expected(tiny, repetition_penalty=penalty)
    assert _generate(tiny, repetition_penalty=penalty) == expected
    assert expected != _generate(tiny)


@pytest.mark.parametrize(("presence", "frequency"), [(2.0, 0.0), (0.0, 2.0), (1.5, 0.7), (-2, -2)])
def test_presence_and_frequency_count_the_output_alone(
    tiny: TinyModel, presence: float, frequency: float
) -> None:
    expected = _penalised(tiny, presence, frequency)
    computed = _generate(tiny, presence_penalty=presence, frequency_penalty=frequency)
    assert computed == expected


def test_penalties_tell_the_prompt_from_the_output() -> None:
    """Of tokens 0 to 3, 0 and 1 are in the prompt, 1 and 2 in the output, 2 twice."""
    raw = torch.tensor([[2.0, 2.0, 2.0, -2.0]])
    context = _context([0, 1, 0, 1, 2, 2], prompt_len=3)
    assert _ruled(raw, context, presence_penalty=0.5).tolist() == [[2.0, 1.5, 1.5, -2.0]]
    assert _ruled(raw, context, frequency_penalty=0.5).tolist() == [[2.0, 1.5, 1.0, -2.0]]
    assert _ruled(raw, context, repetition_penalty=2.0).tolist() == [[1.0, 1.0, 1.0, -2.0]]
    assert _ruled(-raw, context, repetition_penalty=2.0).tolist() == [[-4.0, -4.0, -4.0, 2.0]]


def test_first_token_is_penalised_for_the_prompt_but_not_as_output() -> None:
    raw = torch.tensor([[2.0, 2.0, 1.0]])
    context = _context([0, 0, 0, 0], prompt_len=4)
    untouched = _ruled(raw, context, presence_penalty=2.0, frequency_penalty=2.0)
    assert untouched.tolist() == raw.tolist()
    assert _ruled(raw, context, repetition_penalty=4.0).tolist() == [[0.5, 2.0, 1.0]]


def test_tokens_beyond_a_row_and_beyond_the_vocabulary_count_for_nothing() -> None:
    raw = torch.tensor([[2.0, 2.0]])
    context = replace(_context([7, 0, 1, 1], prompt_len=1), lengths=int32_array([2]))
    assert _ruled(raw, context, frequency_penalty=1.0).tolist() == [[1.0, 2.0]]
    assert _ruled(raw, context, repetition_penalty=2.0).tolist() == [[1.0, 2.0]]


def test_logit_bias_is_the_sequence_bias_of_transformers(tiny: TinyModel) -> None:
    plain = _generate(tiny)
    bias = {plain[0]: -1.5, plain[3]: -100.0, 12: 4.0, 13: 4.5}
    expected = _expected(tiny, sequence_bias={(token,): value for token, value in bias.items()})
    assert _generate(tiny, logit_bias=tuple(bias.items())) == expected
    assert plain[3] not in expected


def test_only_allowed_tokens_are_chosen(tiny: TinyModel) -> None:
    allowed = list(range(100, 140))
    expected = _expected(tiny, prefix_allowed_tokens_fn=lambda batch, ids: allowed)
    assert _generate(tiny, allowed_token_ids=tuple(allowed)) == expected
    drawn = _generate(tiny, allowed_token_ids=tuple(allowed), temperature=3.0, top_p=0.95)
    assert set(drawn) <= set(allowed)


def test_a_bias_of_minus_infinity_excludes_as_suppression_does(tiny: TinyModel) -> None:
    banned = _generate(tiny)[:5]
    expected = _expected(tiny, suppress_tokens=banned)
    assert (
        _generate(tiny, logit_bias=tuple((token, -torch.inf) for token in set(banned))) == expected
    )


def test_bad_words_are_those_of_transformers(tiny: TinyModel) -> None:
    plain = _generate(tiny)
    # a word in the output, one that begins in the prompt, a single token, one that never fits
    words = [plain[2:4], [_PROMPT[-1], plain[0]], [plain[5]], [1, 2, 3]]
    expected = _expected(tiny, bad_words_ids=words)
    assert _generate(tiny, bad_words=tuple(map(tuple, words))) == expected
    assert expected[0] != plain[0]


def test_a_word_longer_than_the_text_is_no_rule_yet(tiny: TinyModel) -> None:
    words = (tuple(range(100)), (*_PROMPT[:-1], 250, 250))
    assert _generate(tiny, bad_words=words) == _generate(tiny)


@pytest.mark.parametrize("min_tokens", [1, 2, 7, _NUM_TOKENS])
def test_stop_ids_are_kept_back_until_enough_tokens(tiny: TinyModel, min_tokens: int) -> None:
    # every other token of the plain output would end it
    stops = _generate(tiny)[::2]
    model = replace(tiny.config().model, eos_token_ids=tuple(stops[:1]))
    sampling = replace(_GREEDY, min_tokens=min_tokens, stop_token_ids=tuple(stops[1:]))
    reported = run(tiny, [_PROMPT], sampling, model=model).reported[0, 0]
    assert reported.tokens == _expected(tiny, min_new_tokens=min_tokens, eos_token_id=stops)
    assert len(reported.tokens) >= min_tokens


def test_ignored_end_ids_are_not_kept_back(tiny: TinyModel) -> None:
    plain = _generate(tiny)
    model = replace(tiny.config().model, eos_token_ids=tuple(plain[:2]))
    sampling = replace(_GREEDY, min_tokens=5, ignore_eos=True)
    assert run(tiny, [_PROMPT], sampling, model=model).reported[0, 0].tokens == plain


def test_logprobs_are_those_of_the_raw_distribution(tiny: TinyModel) -> None:
    controls = replace(
        _GREEDY, num_logprobs=3, presence_penalty=2.0, repetition_penalty=1.5, bad_words=((7,),)
    )
    reported = run(tiny, [_PROMPT], controls).reported[0, 0]
    raw = tiny.logprobs(_PROMPT + reported.tokens)[len(_PROMPT) - 1 : -1]
    chosen = raw.gather(1, torch.tensor(reported.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(reported.logprobs), chosen, atol=1e-4, rtol=0)
    top = raw.topk(3).indices.tolist()
    assert [[token for token, _ in pairs] for pairs in reported.tops] == top


def test_a_row_that_may_choose_nothing_ends_by_its_rules(tiny: TinyModel) -> None:
    nothing = replace(_GREEDY, allowed_token_ids=(7,), stop_token_ids=(7,), min_tokens=2)
    for kind in (nothing, replace(nothing, temperature=1.0, top_p=0.5)):
        reported = run(tiny, [_PROMPT, _PROMPT], [kind, _GREEDY]).reported
        assert (reported[0, 0].tokens, reported[0, 0].reason) == ([], FinishReason.RULED_OUT)
        assert reported[1, 0].tokens == _generate(tiny)


def test_ids_that_the_tokenizer_does_not_know_are_never_chosen(tiny: TinyModel) -> None:
    known = VOCAB_SIZE - 64
    model = replace(tiny.config().model, num_token_ids=known)
    drawing = replace(_GREEDY, temperature=20.0, max_tokens=200, n=8, num_logprobs=2)
    reported = run(tiny, [[VOCAB_SIZE - 1, 3]], drawing, model=model).reported
    drawn = [token for choice in reported.values() for token in choice.tokens]
    assert len(drawn) == 1600
    assert max(drawn) < known
    # without the limit they are
    assert max(run(tiny, [[3]], drawing).reported[0, 0].tokens) >= known
    # a prompt may hold them, and rules about them mean nothing
    ruled = replace(
        _GREEDY, repetition_penalty=1.2, logit_bias=((known, 100.0),), bad_words=((known,),)
    )
    reported = run(tiny, [[VOCAB_SIZE - 1, 3]], ruled, model=model).reported
    assert max(reported[0, 0].tokens) < known


def test_a_row_has_the_rules_of_its_last_sequence() -> None:
    rules = LogitRules(2, 4, HostRuntime())
    penalised = SamplingParams(max_tokens=1, presence_penalty=1.0, allowed_token_ids=(0, 1))
    biased = SamplingParams(max_tokens=1, logit_bias=((3, 2.0),))
    rules.set([RowAdmission(row=row, sampling=penalised) for row in range(2)])
    assert rules.is_active.tolist() == [True, True]
    rules.set([RowAdmission(row=0, sampling=SamplingParams(max_tokens=1))])
    rules.set([RowAdmission(row=1, sampling=biased)])
    assert rules.is_active.tolist() == [False, True]
    logits = torch.zeros(1, 4)
    rules.apply(logits, int32_array([1]), _context([0, 1], prompt_len=0))
    assert logits.tolist() == [[0.0, 0.0, 0.0, 2.0]]


def test_each_row_has_its_own_penalties_bias_and_text() -> None:
    rules = LogitRules(3, 3, HostRuntime())
    kinds: list[dict[str, Any]] = [
        {"presence_penalty": 1.0},
        {"logit_bias": ((1, 0.5),)},
        {"bad_words": ((1, 2),)},
    ]
    rules.set(
        [
            RowAdmission(row=row, sampling=SamplingParams(max_tokens=1, **kind))
            for row, kind in enumerate(kinds)
        ]
    )
    context = Context(
        tokens=torch.tensor([[0, 1, 0], [1, 1, 0], [0, 0, 2]]),
        lengths=int32_array([2, 2, 3]),
        prompt_lens=int32_array([1, 0, 1]),
    )
    logits = torch.zeros(3, 3)
    rules.apply(logits, int32_array([2, 1, 0]), context)
    # row 2 has said the beginning of its word, row 0 has put out a 0 and a 2
    assert logits.tolist() == [[0.0, 0.0, -torch.inf], [0.0, 0.5, 0.0], [-1.0, 0.0, -1.0]]


@pytest.mark.parametrize(("num_output", "is_kept_back"), [(0, True), (1, True), (2, False)])
def test_a_stop_id_may_be_chosen_once_there_are_enough_tokens(
    num_output: int, is_kept_back: bool
) -> None:
    context = _context([0] * (3 + num_output), prompt_len=3)
    ruled = _ruled(torch.zeros(1, 3), context, min_tokens=2, stop_token_ids=(1, -1, 7))
    assert ruled.tolist() == [[0.0, -torch.inf if is_kept_back else 0.0, 0.0]]


def test_a_bad_word_is_ruled_out_behind_its_beginning_only() -> None:
    zeros = torch.zeros(1, 4)
    words = ((1, 2, 3), (0,), (7, 9))
    said = _ruled(zeros, _context([3, 1, 2], prompt_len=3), bad_words=words)
    assert said.tolist() == [[-torch.inf, 0.0, 0.0, -torch.inf]]
    other = _ruled(zeros, _context([1, 2, 1], prompt_len=3), bad_words=words)
    assert other.tolist() == [[-torch.inf, 0.0, 0.0, 0.0]]
    whole = _ruled(zeros, _context([1, 2], prompt_len=2), bad_words=words)
    assert whole.tolist() == said.tolist()


def int32_array(values: list[int]) -> Any:
    return torch.tensor(values, dtype=torch.int32).numpy()


def _context(tokens: list[int], prompt_len: int) -> Context:
    return Context(
        tokens=torch.tensor([tokens]),
        lengths=int32_array([len(tokens)]),
        prompt_lens=int32_array([prompt_len]),
    )


def _ruled(logits: Tensor, context: Context, **controls: Any) -> Tensor:
    rules = LogitRules(1, logits.shape[1], HostRuntime())
    sampling = SamplingParams(max_tokens=1, **controls)
    rules.set([RowAdmission(row=0, sampling=sampling, known_tokens=int32())])
    changed = logits.clone()
    rules.apply(changed, int32_array([0]), context)
    masks = full_mask(1, logits.shape[1])
    rules.mask(masks[0], 0, int(context.lengths[0] - context.prompt_lens[0]))
    mask_tokens(changed, torch.from_numpy(masks))
    return changed
