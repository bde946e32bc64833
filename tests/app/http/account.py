"""Accounts for tests that read bodies."""

from app.http.bodies.held_bytes import Account, HeldBytes


def account(max_bytes: int = 1 << 20) -> Account:
    return Account(HeldBytes(max_bytes, max_bytes), b"")
