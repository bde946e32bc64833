"""Faults of what HTTP requests pass first: request ids, client headers, keys."""

from app.http.middleware import RequestMiddleware
from app.http.operator.access import OperatorAccess, _is_local
from app.http.proxy import ProxyMiddleware, _harmless, _is_taken, identify
from tests.mutation.mutant import Fault

HTTP_FAULTS = [
    # proxy
    Fault(
        what="a client's header reaches Serve",
        function=_is_taken,
        old="name in _SERVE_HEADERS or ",
        new="",
        noticed_by="test_headers_meant_for_serve_are_dropped",
    ),
    Fault(
        what="a header for Serve passes in another spelling",
        function=_is_taken,
        old='.replace(b"_", b"-")',
        new="",
        noticed_by="test_headers_meant_for_serve_are_dropped",
    ),
    Fault(
        what="Serve's request id stays beside ours",
        function=ProxyMiddleware.__call__,
        old="MutableHeaders(scope=message)[ID_HEADER] = request_id",
        new="pass",
        noticed_by="test_an_answer_has_one_id_whatever_serve_appends",
    ),
    Fault(
        what="an unfit request id is kept",
        function=_harmless,
        old="pattern.fullmatch(given[0])",
        new="True",
        noticed_by="test_an_answer_has_one_id_whatever_serve_appends",
    ),
    Fault(
        what="a request id that was made up counts as the client's",
        function=identify,
        old='if "request_id" not in state:',
        new="if True:",
        noticed_by="test_the_body_s_id_counts_behind_the_proxy_too",
    ),
    # middleware
    Fault(
        what="probes need a key where the application has a prefix",
        function=RequestMiddleware._check,
        old='scope["path"].removeprefix(prefix)',
        new='scope["path"]',
        noticed_by="test_probes_and_encoded_names_work_behind_a_prefix",
    ),
    # operators
    Fault(
        what="keys of tenants do not close what is of all",
        function=OperatorAccess.__init__,
        old="sees_clients and not tenant_sha256",
        new="sees_clients",
        noticed_by="test_keys_of_tenants_never_open_what_is_of_all",
    ),
    Fault(
        what="who comes through something in between counts as of this machine",
        function=_is_local,
        old="any(name in headers for name in _FORWARDED)",
        new="False",
        noticed_by="test_what_came_through_something_in_between_is_not_of_this_machine",
    ),
    Fault(
        what="behind HAProxy everybody is of this machine",
        function=OperatorAccess.check,
        old="self._is_open_here and _is_local(scope)",
        new="_is_local(scope)",
        noticed_by="test_where_clients_cannot_be_seen_nobody_is_of_this_machine",
    ),
    Fault(
        what="any key is one of an operator",
        function=OperatorAccess.check,
        old="if not key_digest(scope, self._digests):",
        new="if False:",
        noticed_by="test_keys_of_operators_open_it_from_anywhere_and_nothing_else",
    ),
]
