"""Which requests may share cached blocks, and which belong together."""

import hashlib


def tenant_salt(key_sha256: bytes, cache_salt: str | None) -> bytes:
    """Return the salt under which a request's blocks are cached.

    Callers with different keys never share blocks. With a `cache_salt` a caller also keeps its own
    requests apart from each other.

    Args:
        key_sha256: digest of the caller's key; empty where none is needed.
    """
    parts = [key_sha256] if cache_salt is None else [key_sha256, cache_salt.encode()]
    framed = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    return hashlib.sha256(framed).digest()


def session_key(salt: bytes, session_id: str | None) -> bytes:
    """Return what stands for a conversation of a tenant inside the server; empty for none.

    Args:
        salt: of the tenant: two tenants may have given the same id.
    """
    if session_id is None:
        return b""
    return hashlib.sha256(b"session" + salt + session_id.encode()).digest()[:16]
