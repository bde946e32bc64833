"""Models, their layers and their weights."""
