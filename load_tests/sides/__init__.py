"""One system in one process of its own: what to measure goes in as JSON, figures come out."""
