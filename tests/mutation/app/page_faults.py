"""Faults of the page `/ui`: who sees what, and what it costs while nobody looks."""

from app.http.operator.access import OperatorAccess, _check_own_page
from app.ui.events import EventLog
from app.ui.feed import Feed
from app.ui.frames import _requests, frame_of
from engine.runtime.metrics.live_view import LiveView
from tests.mutation.mutant import Fault

PAGE_FAULTS = [
    Fault(
        what="a tenant's key shows all tenants",
        function=OperatorAccess.audience,
        old="return Audience(account)",
        new="return OPERATOR",
        noticed_by="test_a_key_shows_what_is_its_tenants",
    ),
    Fault(
        what="a page of another origin may look where there are no keys",
        function=_check_own_page,
        old='not in ("same-origin", "none")',
        new="in ()",
        noticed_by="test_without_keys_only_the_servers_own_page_may_look",
    ),
    Fault(
        what="a name that somebody has pointed here opens the page's numbers",
        function=_check_own_page,
        old="host not in _LOCAL_NAMES",
        new="not host",
        noticed_by="test_without_keys_only_the_servers_own_page_may_look",
    ),
    Fault(
        what="the requests of other tenants are in a frame",
        function=_requests,
        old="audience.may_see(account) for account",
        new="True for account",
        noticed_by="test_a_tenant_sees_its_own_requests_and_only_references_of_others",
    ),
    Fault(
        what="block tables of other tenants are in a frame",
        function=_requests,
        old="if is_shown:",
        new="if True:",
        noticed_by="test_a_tenant_sees_its_own_requests_and_only_references_of_others",
    ),
    Fault(
        what="a tenant sees the metrics",
        function=frame_of,
        old='if audience.is_operator:\n        frame["metrics"]',
        new='if True:\n        frame["metrics"]',
        noticed_by="test_a_tenant_sees_its_own_requests_and_only_references_of_others",
    ),
    Fault(
        what="the events of other tenants are shown",
        function=EventLog.since,
        old="if audience.may_see(self._accounts.get(event.request_id))",
        new="if True",
        noticed_by="test_each_audience_gets_the_events_of_its_own_requests",
    ),
    Fault(
        what="the numbers are asked for when the last viewer has left",
        function=Feed._leave,
        old="self._asking.cancel()",
        new="pass",
        noticed_by="test_while_nobody_looks_nothing_is_asked",
    ),
    Fault(
        what="any number of viewers may look",
        function=Feed._has_room,
        old="self.num_viewers < self._options.max_viewers and not self._is_closed",
        new="not self._is_closed",
        noticed_by="test_only_so_many_may_look",
    ),
    Fault(
        what="a frame of one tenant is sent to another",
        function=Feed._frame,
        old="if audience not in self._encoded:",
        new="audience = next(iter(self._encoded), audience)\n    if audience not in self._encoded:",
        noticed_by="test_tenants_get_nothing_of_each_other",
    ),
    Fault(
        what="events are kept while nobody looks",
        function=LiveView.observe,
        old="events is None or not self.is_watched",
        new="events is None",
        noticed_by="test_while_nobody_looks_nothing_is_asked_or_kept",
    ),
    Fault(
        what="each viewer has a snapshot made",
        function=LiveView._fresh_snapshot,
        old="if self._answer is None:",
        new="if True:",
        noticed_by="test_all_who_look_at_once_get_one_answer",
    ),
]
