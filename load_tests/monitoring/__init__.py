"""A real Prometheus beside a server: what it says of a load, of the board and of faults."""
