"""The bodies of requests: read, counted while they are held, and let go of."""
