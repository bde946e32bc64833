"""From a checked request to what the engine needs."""
