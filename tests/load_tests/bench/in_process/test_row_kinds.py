"""Rows that ask for more than their next token, and the tokenizer that grammars need."""

from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from load_tests.bench.in_process.row_kinds import KINDS, sampling_of, write_tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_rows_sample_as_many_tokens_as_plain_ones(kind: str) -> None:
    sampling = sampling_of(kind, 7)
    assert (sampling.max_tokens, sampling.ignore_eos) == (7, True)
    assert (kind == "plain") == (sampling == sampling_of("plain", 7))


def test_random_words_are_a_tokenizer_that_follows_the_grammar(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 3000)
    content = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = LLTokenizer(content, eos_token=[0])
    assert tokenizer.vocab_size == 3000
    grammar = sampling_of("grammar", 7).grammar
    assert grammar is not None
    matcher = LLMatcher(tokenizer, grammar)
    ids = tokenizer.tokenize_str('[{"name":"a b","count":12,"kind":"red"},')
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert not matcher.is_accepting()
