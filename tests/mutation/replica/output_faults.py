"""Faults of the connections over which clients fetch their outputs."""

from app.serve.handle import ServeEngineHandle
from engine.runtime.client.direct_submission import DirectSubmission
from engine.runtime.output_socket.frames import FrameParser
from engine.runtime.output_socket.place import OutputPlace
from engine.runtime.output_socket.port import OutputOffer, OutputPort, _Connection
from engine.runtime.output_socket.reader import _Reader, read_outputs
from tests.mutation.mutant import Fault

OUTPUT_FAULTS = [
    Fault(
        what="a call goes on when nobody reads its stream",
        function=ServeEngineHandle.attach,
        old="call.cancel()",
        new="pass",
        noticed_by="test_a_call_whose_stream_nobody_reads_is_cancelled",
    ),
    Fault(
        what="whoever knows a stream's number gets its outputs",
        function=OutputPort.take,
        old="not hmac.compare_digest(hello, offer.place.hello)",
        new="False",
        noticed_by="test_who_does_not_know_the_secret_is_sent_away_and_its_client_let_in",
    ),
    Fault(
        what="a stranger takes a stream away from its client",
        function=OutputPort.take,
        old="self._offers.get(number_in(hello))",
        new="self._offers.pop(number_in(hello), None)",
        noticed_by="test_who_does_not_know_the_secret_is_sent_away_and_its_client_let_in",
    ),
    Fault(
        what="a stream may be fetched twice",
        function=OutputPort.take,
        old="self._offers.pop(offer.place.number)",
        new="offer",
        noticed_by="test_a_place_is_good_for_one_client",
    ),
    Fault(
        what="both ends prove themselves by the same bytes",
        function=OutputPlace._proof,
        old='b"pagoda outputs " + role',
        new='b"pagoda outputs "',
        noticed_by="test_a_client_names_its_stream_and_neither_proof_is_the_other",
    ),
    Fault(
        what="who says nothing stays connected",
        function=_Connection.connection_made,
        old="loop.call_later(PATIENCE_S, self._refuse",
        new="loop.call_later(600, self._refuse",
        noticed_by="test_who_says_nothing_is_let_go",
    ),
    Fault(
        what="a client that sends nonsense stays connected",
        function=_Connection._take_requests,
        old="self.abort()",
        new="pass",
        noticed_by="test_what_cannot_be_answered_ends_the_connection",
    ),
    Fault(
        what="every verdict is for the first request",
        function=_Connection._take_requests,
        old="frame(number,",
        new="frame(1,",
        noticed_by="test_requests_come_on_the_way_of_the_outputs",
    ),
    Fault(
        what="what the replica has not taken counts as lost with it",
        function=_Reader._end,
        old="if self.failure:",
        new="if True:",
        noticed_by="test_a_stream_that_ends_without_a_verdict_has_not_taken_the_request",
    ),
    Fault(
        what="a request is sent twice after its connection was lost",
        function=_Reader._end,
        old="if self.failure:",
        new="if False:",
        noticed_by="test_of_a_connection_that_is_lost_nobody_knows_what_it_has_taken",
    ),
    Fault(
        what="who stops reading takes what was sent for not taken",
        function=_Reader.leave,
        old="if not self.has_ended:",
        new="if self.has_ended:",
        noticed_by="test_who_stops_reading_hears_of_no_verdict",
    ),
    Fault(
        what="requests are sent to a replica whose stream has ended",
        function=DirectSubmission.reading,
        old="del self._streams[replica]",
        new="pass",
        noticed_by="test_a_stream_that_is_read_no_more_takes_nothing",
    ),
    Fault(
        what="outputs are sent into a connection that is lost",
        function=_Connection.send,
        old="self._transport.is_closing()",
        new="False",
        noticed_by="test_a_client_that_leaves_ends_its_stream_with_the_next_message",
    ),
    Fault(
        what="a call waits for ever for a client that has gone",
        function=OutputOffer.send,
        old="asyncio.timeout(PATIENCE_S)",
        new="asyncio.timeout(600)",
        noticed_by="test_a_client_that_does_not_come_is_not_waited_for",
    ),
    Fault(
        what="a connection stays open when its stream has failed",
        function=OutputOffer.__exit__,
        old="self._connection.result().abort()",
        new="pass",
        noticed_by="test_a_stream_that_fails_is_cut_and_says_why_to_its_call",
    ),
    Fault(
        what="what has not been sent yet is lost at the end of a stream",
        function=_Connection.close,
        old="self._transport.close()",
        new="self._transport.abort()",
        noticed_by="test_messages_come_whole_and_in_order_until_the_stream_ends",
    ),
    Fault(
        what="an offer stays when nobody has come",
        function=OutputOffer.__exit__,
        old="self._withdraw()",
        new="pass",
        noticed_by="test_a_client_that_does_not_come_is_not_waited_for",
    ),
    Fault(
        what="strangers stay when the port is closed",
        function=OutputPort.close,
        old="stranger.abort()",
        new="pass",
        noticed_by="test_a_port_is_open_on_one_address_until_it_is_closed",
    ),
    Fault(
        what="the port stays open",
        function=OutputPort.close,
        old="self._server.close()",
        new="pass",
        noticed_by="test_a_port_is_open_on_one_address_until_it_is_closed",
    ),
    Fault(
        what="outputs of who does not know the secret are read",
        function=_Reader._check_proof,
        old="not hmac.compare_digest(bytes(self._proof[:PROOF_BYTES]), self._place.answer)",
        new="False",
        noticed_by="test_output_of_who_does_not_know_the_secret_is_not_read",
    ),
    Fault(
        what="a message of any size is awaited",
        function=FrameParser.take,
        old="size > MAX_BODY_BYTES",
        new="False",
        noticed_by="test_a_body_that_is_too_long_is_not_awaited",
    ),
    Fault(
        what="one message is taken of those that come together",
        function=FrameParser.take,
        old="while len(part) >= HEADER_BYTES:",
        new="if len(part) >= HEADER_BYTES:",
        noticed_by="test_a_stream_may_come_in_parts_of_any_size",
    ),
    Fault(
        what="a stream that breaks off within a message ends as if it were whole",
        function=_Reader.connection_lost,
        old=" or self._frames.is_within_frame",
        new="",
        noticed_by="test_a_stream_that_breaks_off_within_a_message_is_an_error_behind_the_others",
    ),
    Fault(
        what="a replica that says nothing is waited for",
        function=_Reader.connection_made,
        old="loop.call_later(PATIENCE_S",
        new="loop.call_later(600",
        noticed_by="test_a_replica_that_says_nothing_is_not_waited_for",
    ),
    Fault(
        what="who stops reading stays connected",
        function=read_outputs,
        old="reader.leave()",
        new="pass",
        noticed_by="test_who_stops_reading_hangs_up",
    ),
]
