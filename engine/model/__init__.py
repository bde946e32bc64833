"""Models of the LLaMA family and their weights."""
