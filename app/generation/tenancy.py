"""Whose blocks a request may share."""

import hashlib


def tenant_salt(key_sha256: bytes, cache_salt: str | None) -> bytes:
    """Return the salt under which a request's blocks are cached.

    Callers with different keys never share; a salt of their own keeps a caller's requests apart
    from each other and gives access to nobody else's.

    Args:
        key_sha256: digest of the caller's key; empty where none is needed.
    """
    parts = [key_sha256] if cache_salt is None else [key_sha256, cache_salt.encode()]
    framed = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    return hashlib.sha256(framed).digest()
