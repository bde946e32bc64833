"""Damaged bodies, made from seeds, for the parsers and for the whole application."""
