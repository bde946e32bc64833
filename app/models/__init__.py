"""Model folders: found, fetched, converted."""
