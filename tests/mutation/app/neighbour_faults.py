"""Faults by which one request would hold up or crowd out others."""

from app.generation.request.answer_size import AnswerSize
from app.http.bodies.held_bytes import Account, HeldBytes
from app.http.bodies.request_body import BodyReader, read_json_body
from app.http.bodies.trim import Trimmer
from app.http.bodies.turns import BodyTurn, BodyTurns
from app.http.proxy import ProxyMiddleware
from app.http.tasks import until_disconnect
from app.protocol.answer import AnswerWriter
from app.text.offload import Offload
from tests.mutation.mutant import Fault

NEIGHBOUR_FAULTS = [
    # offload
    Fault(
        what="long work is done on the event loop",
        function=Offload.run,
        old="if size > MAX_INLINE:",
        new="if False:",
        noticed_by="test_work_beyond_the_size_is_done_in_another_thread",
    ),
    Fault(
        what="short work never lets the event loop have its turn",
        function=Offload.run,
        old="self._done_inline += size",
        new="pass",
        noticed_by="test_the_event_loop_has_its_turn_while_short_work_adds_up",
    ),
    # answer_size
    Fault(
        what="an answer may be larger than the limit by what it says of prompts",
        function=AnswerSize.add,
        old="if self._num_prompt_items + self._num_output_items > self._limit:",
        new="if self._num_output_items > self._limit:",
        noticed_by="test_an_answer_may_be_just_as_large_as_the_limit",
    ),
    Fault(
        what="an answer of no given length is refused",
        function=AnswerSize.add,
        old="room = min(room, max(1, left // items_each))",
        new="pass",
        noticed_by="test_an_answer_of_no_given_length_ends_where_it_would_be_too_large",
    ),
    # held_bytes, request_body
    Fault(
        what="a client may hold all bytes of the ingress",
        function=HeldBytes.take,
        old="if client and ",
        new="if False and ",
        noticed_by="test_a_client_that_holds_too_much_is_refused_while_others_are_served",
    ),
    Fault(
        what="the bytes of all clients are not added up",
        function=HeldBytes.take,
        old="if self.total + num_bytes > self._max_bytes:",
        new="if num_bytes > self._max_bytes:",
        noticed_by="test_an_ingress_that_holds_too_much_refuses_everyone",
    ),
    Fault(
        what="bytes are given back twice",
        function=Account.close,
        old="num_bytes, self._num_bytes = self._num_bytes, 0",
        new="num_bytes = self._num_bytes",
        noticed_by="test_what_an_account_holds_is_given_back_once",
    ),
    Fault(
        what="a body is not counted while it comes",
        function=read_json_body,
        old="account.add(len(part))",
        new="pass",
        noticed_by="test_a_body_is_counted_as_it_comes",
    ),
    Fault(
        what="the bytes of a body are kept beside what was read of them",
        function=BodyReader._parse,
        old="body.clear()",
        new="pass",
        noticed_by="test_the_bytes_of_a_body_are_let_go_of_once_they_are_parsed",
    ),
    # tasks
    Fault(
        what="an error keeps its request until the collector comes",
        function=until_disconnect,
        old="del task",
        new="pass",
        noticed_by="test_an_error_is_let_go_of_with_what_its_frames_hold",
    ),
    # trim
    Fault(
        what="memory is trimmed in the middle of a burst",
        function=Trimmer.passed,
        old="self._timer.cancel()",
        new="return",
        noticed_by="test_memory_is_trimmed_once_after_a_burst",
    ),
    # turns, proxy
    Fault(
        what="all large bodies are let in at once",
        function=BodyTurns.turn,
        old="await turn.begin()",
        new="pass",
        noticed_by="test_a_large_body_waits_while_others_have_their_turns",
    ),
    Fault(
        what="a client that sends slowly keeps its turn",
        function=BodyTurn._in_time,
        old="self.pause()",
        new="pass",
        noticed_by="test_a_client_that_sends_slowly_loses_its_turn",
    ),
    Fault(
        what="a turn lasts as long as its request",
        function=BodyTurn._pause_within,
        old="self._timers.append(asyncio.get_running_loop().call_later(seconds, self.pause))",
        new="pass",
        noticed_by="test_a_turn_is_over_after_its_time",
    ),
    Fault(
        what="a body is joined beyond the size",
        function=BodyTurn._wants_more,
        old="is_open and sum(map(len, parts)) < _PIECE_BYTES",
        new="is_open",
        noticed_by="test_parts_come_joined_up_to_a_size",
    ),
    Fault(
        what="the next large body waits for the end of an answer",
        function=ProxyMiddleware.__call__,
        old="turn.end()",
        new="pass",
        noticed_by="test_a_large_body_has_its_turn_until_its_answer_begins",
    ),
    # answer
    Fault(
        what="what choices share is written for each of them",
        function=AnswerWriter._once,
        old="if key not in self._shared:",
        new="if True:",
        noticed_by="test_what_choices_share_is_written_once_and_stands_in_each",
    ),
]
