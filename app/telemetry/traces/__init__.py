"""Traces of requests: which are made, of which spans, and where they go."""
