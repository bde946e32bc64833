"""The swap space of one rank, and what comes back from it."""
