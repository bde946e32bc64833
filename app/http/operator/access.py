"""Who is an operator: metrics and settings are of all tenants, and no tenant may see them."""

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from app.http.errors import HttpError
from app.ui.audience import OPERATOR, Audience

_PATHS = ("/metrics",)
_PREFIXES = ("/admin/",)
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# whoever sends one stands between us and a client whose address is not known
_FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip", "via")


class OperatorAccess:
    """Lets operators through.

    With keys of operators, those. Without, but with keys of tenants: nobody, as if there were no
    such path. Without any keys: who calls from the server's own machine.
    """

    def __init__(
        self,
        operator_sha256: Sequence[bytes],
        tenant_sha256: Sequence[bytes],
        *,
        sees_clients: bool = True,
    ) -> None:
        """Take note of the digests of keys.

        Args:
            sees_clients: whether the address of a connection is the client's.
        """
        self._digests = tuple(operator_sha256)
        self._is_open_here = sees_clients and not tenant_sha256

    def covers(self, path: str) -> bool:
        """Whether a path is one of operators only."""
        return path in _PATHS or path.startswith(_PREFIXES)

    def audience(self, scope: Scope, tenant_sha256: Sequence[bytes]) -> Audience:
        """Return what the caller may see on the page.

        Without keys of tenants everybody has the same account, but a page of another origin, or one
        under a name that somebody has pointed at this machine, may not look.

        Args:
            tenant_sha256: digests of the keys of tenants.

        Raises:
            HttpError: 401 where a key is needed, 403 where one would help.
        """
        if self._digests and key_digest(scope, self._digests):
            return OPERATOR
        if tenant_sha256:
            account = key_digest(scope, tenant_sha256)
            if account:
                return Audience(account)
            raise HttpError(
                401,
                "invalid_api_key",
                "a valid key is needed: your API key, or an operator's",
                headers={"www-authenticate": "Bearer"},
            )
        _check_own_page(scope)
        is_operator = not self._digests and self._is_open_here and is_local(scope)
        return OPERATOR if is_operator else Audience(b"")

    def check(self, scope: Scope) -> None:
        """Return if the caller of such a path is an operator.

        Raises:
            HttpError: 401 where a key would help, else 404.
        """
        if self._digests:
            if not key_digest(scope, self._digests):
                raise HttpError(
                    401,
                    "invalid_api_key",
                    "a valid operator key is needed: Authorization: Bearer KEY",
                    headers={"www-authenticate": "Bearer"},
                )
        elif not (self._is_open_here and is_local(scope)):
            raise HttpError(404, "unknown_url", "there is nothing at this path")


def key_digest(scope: Scope, known: Sequence[bytes], *, own_header: str = "") -> bytes:
    """Return the digest of the caller's key if it is one of those known, else nothing.

    Args:
        own_header: where some clients send a key by itself instead of `authorization`.
    """
    headers = Headers(scope=scope)
    given = headers.getlist("authorization")
    if not given and own_header:
        given = [f"Bearer {key}" for key in headers.getlist(own_header)]
    scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    digest = hashlib.sha256(key.encode("latin-1")).digest()
    # every digest is compared, so that the time taken gives nothing away
    matches = [hmac.compare_digest(digest, each) for each in known]
    return digest if scheme.lower() == "bearer" and any(matches) else b""


def _check_own_page(scope: Scope) -> None:
    """Return if a request comes from a page of this server, opened under a name of this machine."""
    headers = Headers(scope=scope)
    host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HttpError(403, "other_origin", "only the server's own page may ask for this")
    if host not in _LOCAL_NAMES:
        raise HttpError(
            403,
            "not_local",
            "without a key the page shows its numbers only at localhost: open it there, or give "
            "an operator's key (operator_keys_file)",
        )


def is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine, and not through something in between."""
    headers = Headers(scope=scope)
    if any(name in headers for name in _FORWARDED):
        return False
    host, *_ = scope.get("client") or ("",)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
