"""Vectors of texts, and how alike texts are: bodies and answers."""
