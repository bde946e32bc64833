"""The load generator: requests to a server over HTTP at given times, and what its clients see."""
