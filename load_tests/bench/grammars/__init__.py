"""How well libraries make masks of JSON schemas."""
