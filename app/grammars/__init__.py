"""Texts that an answer must match: JSON schemas, regular expressions, choices, grammars."""
