"""The engine beside transformers on one CPU thread."""
