"""Clients that others have written, unmodified, against one real `serve run`."""
