"""Which engine replica gets a request: what replicas report, and how they are compared."""
