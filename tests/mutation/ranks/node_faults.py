"""Faults of what reaches ranks on other nodes."""

from engine.executor.several_nodes import find_places, listen
from engine.executor.tcp_channel import TcpChannel, TcpListener, open_port, prove
from tests.mutation.mutant import Fault

NODE_FAULTS = [
    Fault(
        what="everybody on the network may connect",
        function=prove,
        old="not hmac.compare_digest(peer_proof, _proof(secret, peer_role, own_nonce, peer_nonce))",
        new="False",
        noticed_by="test_who_does_not_know_the_secret_is_sent_away_and_the_next_one_let_in",
    ),
    Fault(
        what="a peer may answer with our own proof",
        function=prove,
        old="_proof(secret, peer_role, own_nonce, peer_nonce)",
        new="_proof(secret, own_role, peer_nonce, own_nonce)",
        noticed_by="test_our_own_proof_is_none_of_the_peer",
    ),
    Fault(
        what="a stranger ends the wait for the scheduler",
        function=TcpListener._accept,
        old="connection.close()",
        new="raise",
        noticed_by="test_who_does_not_know_the_secret_is_sent_away_and_the_next_one_let_in",
    ),
    Fault(
        what="a rank listens on all networks",
        function=open_port,
        old="socket.create_server((address, 0), family=family)",
        new='socket.create_server(("", 0), family=family)',
        noticed_by="test_a_port_is_open_on_one_address_until_the_peer_has_come",
    ),
    Fault(
        what="a packet that was sent in part begins anew",
        function=TcpChannel._write_packet,
        old="start[self._num_sent :], part[max(0, self._num_sent - len(start)) :]",
        new="start, part",
        noticed_by="test_a_packet_that_was_sent_in_part_goes_on_where_it_stopped",
    ),
    Fault(
        what="a packet of any size is awaited",
        function=TcpChannel._read_packet,
        old="not 1 < size <= PACKET_BYTES + 1",
        new="False",
        noticed_by="test_what_is_no_packet_counts_as_the_end",
    ),
    Fault(
        what="gangs meet at one name",
        function=find_places,
        old="secrets.token_hex(16)",
        new='"gang"',
        noticed_by="test_no_two_gangs_meet_at_one_name",
    ),
    Fault(
        what="a rank on another node listens where the scheduler cannot come",
        function=listen,
        old="places is None or is_here(places[index])",
        new="True",
        noticed_by="test_ranks_on_other_nodes_listen_on_a_port_that_asks_for_the_secret",
    ),
]
