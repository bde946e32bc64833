"""Bodies that wait are counted for each client and in all, until they are let go of."""

import pytest

from app.http.bodies.held_bytes import HeldBytes
from app.http.bodies.trim import Trimmer
from app.http.errors import HttpError

ONE, OTHER, NO_KEY = b"1" * 32, b"2" * 32, b""


def test_a_client_that_holds_too_much_is_refused_while_others_are_served() -> None:
    held = HeldBytes(100, 10)
    with held.account(ONE) as first, held.account(ONE) as second, held.account(OTHER) as third:
        first.add(6)
        with pytest.raises(HttpError) as caught:
            second.add(5)
        assert (caught.value.status, caught.value.code) == (429, "too_many_bytes")
        assert int(caught.value.headers["retry-after"]) > 0
        second.add(4)
        third.add(10)
        assert held.total == 20


def test_an_ingress_that_holds_too_much_refuses_everyone() -> None:
    held = HeldBytes(10, 10)
    with held.account(ONE) as first, held.account(OTHER) as second, held.account(NO_KEY) as third:
        first.add(6)
        for account in (second, third):
            with pytest.raises(HttpError) as caught:
                account.add(5)
            assert (caught.value.status, caught.value.code) == (503, "too_many_bytes")
            assert "retry-after" in caught.value.headers


def test_callers_without_a_key_are_not_one_client() -> None:
    held = HeldBytes(100, 10)
    with held.account(NO_KEY) as account:
        account.add(50)


def test_what_an_account_holds_is_given_back_once() -> None:
    held = HeldBytes(100, 10)
    with held.account(ONE) as account:
        account.add(10)
        account.close()
        assert held.total == 0
        account.add(3)
    assert held.total == 0


async def test_memory_is_trimmed_for_what_is_given_back() -> None:
    passed: list[int] = []

    class Noted(Trimmer):
        def passed(self, num_bytes: int) -> None:
            passed.append(num_bytes)

    with HeldBytes(100, 10, Noted()).account(ONE) as account:
        account.add(7)
        assert passed == []
    assert passed == [7]
