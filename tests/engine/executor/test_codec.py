import dataclasses
from array import array
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from engine.errors import InvariantViolated
from engine.executor.codec import Codec
from engine.executor.gang import PLANS, REPLIES, RankReply
from engine.runtime.messages import COMMANDS, OUTPUTS, REQUESTS, VERDICTS, Verdict, Withdrawal
from engine.types import (
    MemoryUsage,
    Refusal,
    Request,
    RowAdmission,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepResult,
    StepStats,
    int32,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# NaN does not equal itself
NUMBERS: dict[Any, SearchStrategy[Any]] = {int: INT64, float: st.floats(allow_nan=False)}


def column(typecode: str) -> "SearchStrategy[array[Any]]":
    values: SearchStrategy[Any] = {
        "b": st.integers(-128, 127),
        "i": INT32,
        "q": INT64,
        "f": st.floats(width=32, allow_nan=False),
    }[typecode]
    return st.lists(values, max_size=5).map(lambda items: array(typecode, items))


def built(kind: Any, **fields: SearchStrategy[Any]) -> SearchStrategy[Any]:
    numbers = {
        field.name: NUMBERS[field.type]
        for field in dataclasses.fields(kind)
        if field.type in NUMBERS
    }
    return st.builds(kind, **{**numbers, **fields})


def columns(typecode: str, *names: str) -> dict[str, SearchStrategy[Any]]:
    return {name: column(typecode) for name in names}


TOPS = {**columns("i", "top_counts", "top_tokens"), "top_logprobs": column("f")}
SAMPLING = built(
    SamplingParams,
    max_tokens=INT32,
    seed=st.integers(0, 2**64 - 1),
    stop_token_ids=st.lists(INT32, max_size=3).map(tuple),
    num_logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    logit_bias=st.lists(st.tuples(INT32, st.floats(-100, 100)), max_size=3).map(tuple),
    bad_words=st.lists(st.lists(INT32, max_size=3).map(tuple), max_size=3).map(tuple),
    deterministic=st.booleans(),
)
REQUEST = built(Request, request_id=INT64, prompt=column("i"), sampling=SAMPLING)
RESULT = built(StepResult, step=INT32, rows=column("i"), tokens=column("i"), **TOPS)
PLAN = built(
    StepPlan,
    step=INT32,
    admissions=st.lists(
        built(RowAdmission, row=INT32, sampling=SAMPLING, known_tokens=column("i")), max_size=3
    ),
    prefill_samples=column("b"),
    **columns("i", "releases", "append_rows", "decode_rows", "prefill_rows", "prefill_tokens"),
)
OUTPUT = built(
    StepOutput,
    step=INT32,
    request_ids=column("q"),
    logprobs=column("f"),
    finish_reasons=column("b"),
    stats=built(StepStats, usage=built(MemoryUsage)),
    **columns("i", "choices", "tokens"),
    **TOPS,
)
PREFIXES = st.lists(st.tuples(st.binary(max_size=3), st.text(max_size=3)), max_size=2).map(tuple)
MESSAGES: list[tuple[Codec[Any], SearchStrategy[Any]]] = [
    (PLANS, PLAN),
    (REPLIES, built(RankReply, result=st.none() | RESULT, error=st.text())),
    (REQUESTS, REQUEST),
    (COMMANDS, REQUEST | st.builds(Withdrawal, column("q"), column("i"), PREFIXES)),
    (OUTPUTS, OUTPUT),
    (VERDICTS, built(Verdict, refusal=st.none() | built(Refusal))),
]


@pytest.mark.parametrize(("codec", "messages"), MESSAGES)
@settings(max_examples=30)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(
    codec: Codec[Any], messages: SearchStrategy[Any], data: st.DataObject
) -> None:
    message = data.draw(messages)
    assert codec.decode(codec.encode(message)) == message


def test_empty_columns_that_a_message_need_not_have_are_not_sent() -> None:
    encoded = PLANS.encode(StepPlan(step=7, decode_rows=int32([1, 2])))
    assert b"decode_rows" in encoded
    assert b"prefill_rows" not in encoded
    assert PLANS.decode(encoded) == StepPlan(step=7, decode_rows=int32([1, 2]))


def test_an_empty_column_that_a_message_must_have_is_sent() -> None:
    request = Request(request_id=1, prompt=int32(), sampling=SamplingParams(max_tokens=1))
    assert REQUESTS.decode(REQUESTS.encode(request)) == request
    # and a number that is 0, beside columns that may be left out
    codec, result = Codec(StepResult), StepResult(step=0)
    assert codec.decode(codec.encode(result)) == result


@given(st.binary(max_size=100))
def test_bytes_from_anywhere_raise_nothing_else(junk: bytes) -> None:
    for codec, _ in MESSAGES:
        with suppress(InvariantViolated):
            codec.decode(junk)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\x81",
        b"\xc1",
        b"\xc3",
        b"\x81\x01\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xffi",
        b"\x82\xa7replica\xa2\x00\x80",
        b"\x81\xa1x" + b"\x91" * 1_000_000,
        b"\x91" * 1_000_000,
    ],
    ids=[
        "nothing",
        "cut map",
        "byte that msgpack never uses",
        "another type",
        "wrong key",
        "array",
        "map",
        "bytes",
        "column",
        "no text",
        "nested unknown field",
        "nested",
    ],
)
def test_junk_is_an_invariant_violation(junk: bytes) -> None:
    for codec, _ in MESSAGES:
        with pytest.raises(InvariantViolated, match="not a"):
            codec.decode(junk)


@pytest.mark.parametrize(("codec", "messages"), MESSAGES)
@settings(max_examples=30)
@given(data=st.data())
def test_a_damaged_message_raises_nothing_else(
    codec: Codec[Any], messages: SearchStrategy[Any], data: st.DataObject
) -> None:
    damaged = bytearray(codec.encode(data.draw(messages)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InvariantViolated):
        codec.decode(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


def test_a_message_of_another_kind_is_refused() -> None:
    encoded = VERDICTS.encode(Verdict(replica="a"))
    with pytest.raises(InvariantViolated, match="not a StepPlan"):
        PLANS.decode(encoded)


def test_a_column_cut_inside_a_value_is_refused() -> None:
    encoded = COMMANDS.encode(Withdrawal(array("i", [7]), int32()))
    # fixext 4 with typecode 'i' becomes fixext 4 with typecode 'q', whose values take 8 bytes
    broken = encoded.replace(b"\xd6i", b"\xd6q")
    assert broken != encoded
    with pytest.raises(InvariantViolated, match="do not fill"):
        COMMANDS.decode(broken)


def test_a_column_of_an_unknown_typecode_is_refused() -> None:
    encoded = COMMANDS.encode(Withdrawal(array("i", [7]), int32()))
    with pytest.raises(InvariantViolated, match="no typecode"):
        COMMANDS.decode(encoded.replace(b"\xd6i", b"\xd6u"))


def test_a_message_with_a_number_in_the_place_of_a_column_is_refused() -> None:
    encoded = COMMANDS.encode(Withdrawal(array("i", [7]), int32()))
    # fixext 4 with its typecode and value becomes a number of as many bytes
    broken = encoded.replace(b"\xd6i\x07\x00\x00\x00", b"\xce\x00\x00\x00\x07")
    assert broken != encoded
    with pytest.raises(InvariantViolated, match="expected a column, got int"):
        COMMANDS.decode(broken)


def test_only_columns_have_an_encoding() -> None:
    with pytest.raises(NotImplementedError, match="complex"):
        COMMANDS.encode(complex(1))  # type: ignore[arg-type]
