"""Traces of the requests and of how they ended."""
