"""Traces of what was asked and what became of it."""
